"""Gitea's JSON."""

from typing import Any

from tests.doubles.forges.bare_repository import Commit
from tests.doubles.forges.clock import stamp
from tests.doubles.forges.forge_state import (
    Account,
    BranchRules,
    Check,
    Comment,
    Issue,
    Label,
    Pull,
    Repository,
    Review,
)


class GiteaShapes:
    """Objects as Gitea's API sends them, with URLs of this server."""

    def __init__(self, url: str, api: str) -> None:
        self.url, self.api = url, api

    def user(self, account: Account) -> dict[str, Any]:
        """`User`."""
        return {
            "id": account.id,
            "login": account.login,
            "full_name": "",
            "email": f"{account.login}@noreply.127.0.0.1",
            "avatar_url": f"{self.url}/avatars/{account.id}",
            "html_url": f"{self.url}/{account.login}",
            "is_admin": False,
            "active": True,
        }

    def repository(self, repository: Repository) -> dict[str, Any]:
        """`Repository`."""
        html = f"{self.url}/{repository.full_name}"
        return {
            "id": repository.id,
            "owner": self.user(repository.owner),
            "name": repository.name,
            "full_name": repository.full_name,
            "description": "",
            "empty": False,
            "private": repository.private,
            "fork": False,
            "archived": False,
            "mirror": False,
            "default_branch": repository.default_branch,
            "url": f"{self.api}/repos/{repository.full_name}",
            "html_url": html,
            "clone_url": f"{html}.git",
            "ssh_url": f"git@127.0.0.1:{repository.full_name}.git",
            "permissions": {"admin": False, "push": True, "pull": True},
            "has_pull_requests": True,
            "allow_merge_commits": "merge" in repository.methods,
            "allow_squash_merge": "squash" in repository.methods,
            "allow_rebase": "rebase" in repository.methods,
            "created_at": stamp(repository.created),
            "updated_at": stamp(repository.created),
        }

    def branch(self, repository: Repository, name: str, commit: Commit) -> dict[str, Any]:
        """`Branch`."""
        rules = repository.rules_of(name)
        person = {"name": commit.author[0], "email": commit.author[1], "username": ""}
        return {
            "name": name,
            "commit": {
                "id": commit.sha,
                "message": commit.message,
                "url": f"{self.url}/{repository.full_name}/commit/{commit.sha}",
                "author": person,
                "committer": person,
                "timestamp": commit.date,
                "verification": None,
                "added": None,
                "removed": None,
                "modified": None,
            },
            "protected": bool(rules),
            "required_approvals": max((one.approvals for one in rules), default=0),
            "enable_status_check": any(one.checks for one in rules),
            "status_check_contexts": [name for one in rules for name in one.checks],
            "user_can_push": not rules,
            "user_can_merge": True,
            "effective_branch_protection_name": rules[0].pattern if rules else "",
        }

    def protection(self, rules: BranchRules, created: str) -> dict[str, Any]:
        """`BranchProtection`."""
        return {
            "branch_name": rules.pattern,
            "rule_name": rules.pattern,
            "enable_push": False,
            "enable_status_check": bool(rules.checks),
            "status_check_contexts": list(rules.checks),
            "required_approvals": rules.approvals,
            "block_on_rejected_reviews": rules.approvals > 0,
            "block_on_outdated_branch": rules.up_to_date,
            "require_signed_commits": rules.signatures,
            "created_at": created,
            "updated_at": created,
        }

    def label(self, repository: Repository, label: Label) -> dict[str, Any]:
        """`Label`."""
        return {
            "id": label.id,
            "name": label.name,
            "color": label.color,
            "description": label.description,
            "exclusive": False,
            "is_archived": False,
            "url": f"{self.api}/repos/{repository.full_name}/labels/{label.id}",
        }

    def _about(self, repository: Repository, issue: Issue) -> dict[str, Any]:
        return {
            "id": issue.id,
            "number": issue.number,
            "title": issue.title,
            "body": issue.body or "",
            "user": self.user(issue.author),
            "labels": [self.label(repository, one) for one in issue.labels],
            "milestone": None,
            "assignee": None,
            "assignees": None,
            "state": issue.state,
            "is_locked": False,
            "comments": len(issue.comments),
            "created_at": stamp(issue.created),
            "updated_at": stamp(issue.updated or issue.created),
            "closed_at": stamp(issue.closed) if issue.closed else None,
            "due_date": None,
            "pin_order": 0,
        }

    def issue(self, repository: Repository, issue: Issue) -> dict[str, Any]:
        """`Issue`."""
        own = f"repos/{repository.full_name}/issues/{issue.number}"
        html = f"{self.url}/{repository.full_name}/{'pulls' if isinstance(issue, Pull) else 'issues'}/{issue.number}"
        pull = None
        if isinstance(issue, Pull):
            merged = stamp(issue.merged) if issue.merged else None
            pull = {"merged": merged is not None, "merged_at": merged, "draft": issue.draft, "html_url": html}
        return {**self._about(repository, issue), "url": f"{self.api}/{own}", "html_url": html, "pull_request": pull}

    def pull(self, repository: Repository, pull: Pull, *, mergeable: bool) -> dict[str, Any]:
        """`PullRequest`; `mergeable` is never null, and false while Gitea checks it."""
        html = f"{self.url}/{repository.full_name}/pulls/{pull.number}"
        return {
            **self._about(repository, pull),
            "url": html,
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "draft": pull.draft,
            "mergeable": mergeable,
            "merged": pull.merged is not None,
            "merged_at": stamp(pull.merged) if pull.merged else None,
            "merge_commit_sha": pull.merge_commit,
            "merged_by": self.user(pull.merged_by) if pull.merged_by else None,
            "merge_base": repository.git.run("merge-base", pull.base_sha, pull.head_sha),
            "requested_reviewers": [self.user(one) for one in pull.reviewers],
            "requested_reviewers_teams": [],
            "review_comments": 0,
            "allow_maintainer_edit": False,
            "head": self._end(repository, pull.head, pull.head_sha),
            "base": self._end(repository, pull.base, pull.base_sha),
        }

    def _end(self, repository: Repository, branch: str, sha: str) -> dict[str, Any]:
        about = {"label": branch, "ref": branch, "sha": sha, "repo_id": repository.id}
        return {**about, "repo": self.repository(repository)}

    def review(self, repository: Repository, pull: Pull, review: Review) -> dict[str, Any]:
        """`PullReview`; its states are `APPROVED`, `REQUEST_CHANGES` and `COMMENT`."""
        html = f"{self.url}/{repository.full_name}/pulls/{pull.number}"
        names = {"CHANGES_REQUESTED": "REQUEST_CHANGES", "COMMENTED": "COMMENT"}
        return {
            "id": review.id,
            "user": self.user(review.author),
            "team": None,
            "state": names.get(review.state, review.state),
            "body": review.body,
            "commit_id": review.commit,
            "stale": review.commit != pull.head_sha,
            "official": True,
            "dismissed": False,
            "comments_count": 0,
            "submitted_at": stamp(review.at),
            "updated_at": stamp(review.at),
            "html_url": f"{html}#issuecomment-{review.id}",
            "pull_request_url": html,
        }

    def comment(self, repository: Repository, issue: Issue, comment: Comment) -> dict[str, Any]:
        """`Comment`."""
        html = f"{self.url}/{repository.full_name}/pulls/{issue.number}"
        return {
            "id": comment.id,
            "html_url": f"{html}#issuecomment-{comment.id}",
            "pull_request_url": html,
            "issue_url": "",
            "user": self.user(comment.author),
            "body": comment.body,
            "assets": [],
            "created_at": stamp(comment.at),
            "updated_at": stamp(comment.at),
        }

    def status(self, repository: Repository, check: Check, creator: Account) -> dict[str, Any]:
        """`CommitStatus`."""
        return {
            "id": check.id,
            "status": check.conclusion or "pending",
            "target_url": "",
            "description": "",
            "url": f"{self.api}/repos/{repository.full_name}/statuses/{check.commit}",
            "context": check.name,
            "creator": self.user(creator),
            "created_at": stamp(check.at),
            "updated_at": stamp(check.at),
        }
