"""GitLab's JSON."""

from typing import Any

from tests.doubles.forges.bare_repository import Commit
from tests.doubles.forges.clock import stamp
from tests.doubles.forges.forge_state import Account, BranchRules, Check, Comment, Issue, Pull, Repository

_STATES = {"open": "opened", "closed": "closed"}


class GitLabShapes:
    """Objects as GitLab's API sends them, with URLs of this server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def user(self, account: Account) -> dict[str, Any]:
        """A user as other objects contain it."""
        return {
            "id": account.id,
            "username": account.login,
            "name": account.login,
            "state": "active",
            "avatar_url": f"{self.url}/avatars/{account.id}",
            "web_url": f"{self.url}/{account.login}",
        }

    def project(self, project: Repository) -> dict[str, Any]:
        """A project."""
        web = f"{self.url}/{project.full_name}"
        return {
            "id": project.id,
            "name": project.name,
            "path": project.name,
            "path_with_namespace": project.full_name,
            "description": None,
            "default_branch": project.default_branch,
            "visibility": "private",
            "web_url": web,
            "http_url_to_repo": f"{web}.git",
            "ssh_url_to_repo": f"git@127.0.0.1:{project.full_name}.git",
            "archived": False,
            "empty_repo": False,
            "merge_requests_enabled": True,
            "merge_method": "merge",
            "squash_option": "default_off",
            "remove_source_branch_after_merge": False,
            "created_at": stamp(project.created),
            "last_activity_at": stamp(project.created),
        }

    def branch(self, project: Repository, name: str, commit: Commit) -> dict[str, Any]:
        """A branch."""
        shielded = bool(project.rules_of(name))
        return {
            "name": name,
            "merged": False,
            "protected": shielded,
            "default": name == project.default_branch,
            "developers_can_push": False,
            "developers_can_merge": False,
            "can_push": not shielded,
            "web_url": f"{self.url}/{project.full_name}/-/tree/{name}",
            "commit": {
                "id": commit.sha,
                "short_id": commit.sha[:8],
                "title": commit.message.splitlines()[0],
                "message": commit.message,
                "parent_ids": list(commit.parents),
                "author_name": commit.author[0],
                "author_email": commit.author[1],
                "authored_date": commit.date,
                "committer_name": commit.author[0],
                "committer_email": commit.author[1],
                "committed_date": commit.date,
            },
        }

    def protected(self, rules: BranchRules) -> dict[str, Any]:
        """A protected branch: no one pushes, maintainers merge."""
        levels = {"push_access_levels": (0, "No one"), "merge_access_levels": (40, "Maintainers")}
        return {
            "id": 1,
            "name": rules.pattern,
            **{
                name: [{"id": 1, "access_level": level, "access_level_description": text}]
                for name, (level, text) in levels.items()
            },
            "allow_force_push": False,
            "code_owner_approval_required": False,
        }

    def pipeline(self, project: Repository, check: Check) -> dict[str, Any]:
        """A pipeline of a commit."""
        return {
            "id": check.id,
            "iid": check.id,
            "project_id": project.id,
            "sha": check.commit,
            "ref": "",
            "status": check.conclusion or "running",
            "source": "push",
            "created_at": stamp(check.at),
            "updated_at": stamp(check.at),
            "web_url": f"{self.url}/{project.full_name}/-/pipelines/{check.id}",
        }

    def status(self, check: Check, author: Account) -> dict[str, Any]:
        """A commit status."""
        return {
            "id": check.id,
            "sha": check.commit,
            "ref": "",
            "status": check.conclusion or "running",
            "name": check.name,
            "allow_failure": False,
            "author": self.user(author),
            "target_url": "",
            "created_at": stamp(check.at),
        }

    def merge_request(self, project: Repository, pull: Pull, status: str) -> dict[str, Any]:
        """A merge request as lists send it; `status` is its `detailed_merge_status`."""
        unknown = {"checking", "unchecked", "preparing"}
        old = "checking" if status in unknown else "cannot_be_merged" if status == "conflict" else "can_be_merged"
        users = [self.user(one) for one in pull.reviewers]
        merger = self.user(pull.merged_by) if pull.merged_by else None
        return {
            **self._about(project, pull),
            "state": "merged" if pull.merged else _STATES[pull.state],
            "web_url": f"{self.url}/{project.full_name}/-/merge_requests/{pull.number}",
            "merged_by": merger,
            "merged_at": stamp(pull.merged) if pull.merged else None,
            "closed_by": None,
            "closed_at": stamp(pull.closed) if pull.closed and not pull.merged else None,
            "source_branch": pull.head,
            "target_branch": pull.base,
            "source_project_id": project.id,
            "target_project_id": project.id,
            "assignee": None,
            "assignees": [],
            "reviewers": users,
            "draft": pull.draft,
            "work_in_progress": pull.draft,
            "merge_when_pipeline_succeeds": pull.queued,
            "merge_status": old,
            "detailed_merge_status": status,
            "sha": pull.head_sha,
            "merge_commit_sha": pull.merge_commit,
            "squash_commit_sha": None,
            "should_remove_source_branch": None,
            "force_remove_source_branch": False,
            "reference": f"!{pull.number}",
            "references": self._references(project, "!", pull),
            "squash": False,
            "prepared_at": stamp(pull.created),
            "has_conflicts": status == "conflict",
            "blocking_discussions_resolved": True,
            "approvals_before_merge": None,
        }

    def _references(self, project: Repository, sign: str, issue: Issue) -> dict[str, str]:
        short = f"{sign}{issue.number}"
        return {"short": short, "relative": short, "full": f"{project.full_name}{short}"}

    def _about(self, project: Repository, issue: Issue) -> dict[str, Any]:
        return {
            "id": issue.id,
            "iid": issue.number,
            "project_id": project.id,
            "title": issue.title,
            "description": issue.body or "",
            "author": self.user(issue.author),
            "created_at": stamp(issue.created),
            "updated_at": stamp(issue.updated or issue.created),
            "labels": [one.name for one in issue.labels],
            "milestone": None,
            "discussion_locked": None,
            "user_notes_count": len(issue.comments),
            "upvotes": 0,
            "downvotes": 0,
            "time_stats": {
                "time_estimate": 0,
                "total_time_spent": 0,
                "human_time_estimate": None,
                "human_total_time_spent": None,
            },
            "task_completion_status": {"count": 0, "completed_count": 0},
        }

    def full_merge_request(
        self, project: Repository, pull: Pull, status: str, pipeline: Check | None
    ) -> dict[str, Any]:
        """A merge request as a get of it sends."""
        base = project.git.run("merge-base", pull.base_sha, pull.head_sha)
        return {
            **self.merge_request(project, pull, status),
            "subscribed": False,
            "changes_count": str(len(project.git.changes(pull.base_sha, pull.head_sha))),
            "latest_build_started_at": None,
            "latest_build_finished_at": None,
            "first_deployed_to_production_at": None,
            "pipeline": self.pipeline(project, pipeline) if pipeline else None,
            "head_pipeline": self.pipeline(project, pipeline) if pipeline else None,
            "diff_refs": {"base_sha": base, "head_sha": pull.head_sha, "start_sha": pull.base_sha},
            "merge_error": None,
            "first_contribution": False,
            "user": {"can_merge": True},
        }

    def issue(self, project: Repository, issue: Issue) -> dict[str, Any]:
        """An issue."""
        about = {name: each for name, each in self._about(project, issue).items() if each is not None}
        return {
            **about,
            "state": _STATES[issue.state],
            "web_url": f"{self.url}/{project.full_name}/-/issues/{issue.number}",
            "references": self._references(project, "#", issue),
            "confidential": False,
        }

    def note(self, project: Repository, pull: Pull, comment: Comment) -> dict[str, Any]:
        """A note on a merge request."""
        return {
            "id": comment.id,
            "body": comment.body,
            "attachment": None,
            "author": self.user(comment.author),
            "created_at": stamp(comment.at),
            "updated_at": stamp(comment.at),
            "system": False,
            "noteable_id": pull.id,
            "noteable_type": "MergeRequest",
            "noteable_iid": pull.number,
            "project_id": project.id,
            "resolvable": False,
        }
