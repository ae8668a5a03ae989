"""GitHub's JSON of issues, pull requests, reviews and checks."""

from datetime import datetime
from typing import Any

from tests.doubles.forges.clock import stamp
from tests.doubles.forges.forge_state import Check, Issue, Pull, Repository, Review
from tests.doubles.forges.github_shapes import Shapes, node
from tests.doubles.forges.replies import ApiError


class PullShapes(Shapes):
    """The shapes with issues, pull requests, reviews and checks."""

    def issue(self, repository: Repository, issue: Issue) -> dict[str, Any]:
        """`issue`."""
        base = f"{self.api}/repos/{repository.full_name}"
        own = f"{base}/issues/{issue.number}"
        html = f"{self.url}/{repository.full_name}/{'pull' if isinstance(issue, Pull) else 'issues'}/{issue.number}"
        pull = {"pull_request": self._pull_of_issue(repository, issue)} if isinstance(issue, Pull) else {}
        return {
            **self._about(repository, issue),
            "node_id": node("I", issue.id),
            "url": own,
            "html_url": html,
            "repository_url": base,
            "labels_url": own + "/labels{/name}",
            "comments_url": own + "/comments",
            "events_url": own + "/events",
            "comments": len(issue.comments),
            "author_association": "MEMBER",
            **pull,
        }

    def _pull_of_issue(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        html = f"{self.url}/{repository.full_name}/pull/{pull.number}"
        return {
            "url": f"{self.api}/repos/{repository.full_name}/pulls/{pull.number}",
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            # By the document of 2026-03-10 it is never null; both documents permit that it is absent.
            **({"merged_at": stamp(pull.merged)} if pull.merged else {}),
        }

    def _about(self, repository: Repository, issue: Issue) -> dict[str, Any]:
        return {
            "id": issue.id,
            "number": issue.number,
            "state": issue.state,
            "locked": False,
            "active_lock_reason": None,
            "title": issue.title,
            "body": issue.body,
            "user": self.account(issue.author),
            "labels": [self.label(repository, one) for one in issue.labels],
            "milestone": None,
            "assignee": None,
            "assignees": [],
            "created_at": stamp(issue.created),
            "updated_at": stamp(issue.updated or issue.created),
            "closed_at": _time(issue.closed),
        }

    def pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        """`pull-request-simple`, as lists send it."""
        base, html = f"{self.api}/repos/{repository.full_name}", f"{self.url}/{repository.full_name}/pull/{pull.number}"
        own, issue = f"{base}/pulls/{pull.number}", f"{base}/issues/{pull.number}"
        links = {
            "self": own,
            "html": html,
            "issue": issue,
            "comments": f"{issue}/comments",
            "review_comments": f"{own}/comments",
            "review_comment": f"{base}/pulls/comments{{/number}}",
            "commits": f"{own}/commits",
            "statuses": f"{base}/statuses/{pull.head_sha}",
        }
        return {
            **self._about(repository, pull),
            "node_id": node("PR", pull.id),
            "url": own,
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "issue_url": issue,
            **{f"{name}_url": links[name] for name in links if name not in {"self", "html", "issue"}},
            "merged_at": _time(pull.merged),
            "merge_commit_sha": pull.merge_commit,
            "draft": pull.draft,
            "requested_reviewers": [self.account(one) for one in pull.reviewers],
            "requested_teams": [],
            "head": self._end(repository, pull.head, pull.head_sha),
            "base": self._end(repository, pull.base, pull.base_sha),
            "_links": {name: {"href": link} for name, link in links.items()},
            "author_association": "MEMBER",
            "auto_merge": self._auto_merge(pull),
        }

    def _auto_merge(self, pull: Pull) -> dict[str, Any] | None:
        if pull.auto_merge is None:
            return None
        about = {"merge_method": pull.auto_merge, "commit_title": pull.title, "commit_message": ""}
        return {"enabled_by": self.account(pull.merged_by or pull.author), **about}

    def _end(self, repository: Repository, branch: str, sha: str) -> dict[str, Any]:
        return {
            "label": f"{repository.owner.login}:{branch}",
            "ref": branch,
            "sha": sha,
            "user": self.account(repository.owner),
            "repo": self.repository(repository),
        }

    def full_pull(
        self, repository: Repository, pull: Pull, mergeable: bool | None, mergeable_state: str
    ) -> dict[str, Any]:
        """`pull-request`, as a get of it sends."""
        files = repository.git.changes(pull.base_sha, pull.head_sha)
        return {
            **self.pull(repository, pull),
            "merged": pull.merged is not None,
            "mergeable": mergeable,
            "rebaseable": mergeable,
            "mergeable_state": mergeable_state,
            "merged_by": self.account(pull.merged_by) if pull.merged_by else None,
            "comments": len(pull.comments),
            "review_comments": 0,
            "maintainer_can_modify": False,
            "commits": len(repository.git.between(pull.base_sha, pull.head_sha)),
            "additions": sum(added for added, _, _ in files),
            "deletions": sum(removed for _, removed, _ in files),
            "changed_files": len(files),
        }

    def review(self, repository: Repository, pull: Pull, review: Review) -> dict[str, Any]:
        """`pull-request-review`."""
        html = f"{self.url}/{repository.full_name}/pull/{pull.number}#pullrequestreview-{review.id}"
        own = f"{self.api}/repos/{repository.full_name}/pulls/{pull.number}"
        return {
            "id": review.id,
            "node_id": node("PRR", review.id),
            "user": self.account(review.author),
            "body": review.body,
            "state": review.state,
            "html_url": html,
            "pull_request_url": own,
            "_links": {"html": {"href": html}, "pull_request": {"href": own}},
            "submitted_at": stamp(review.at),
            "commit_id": review.commit,
            "author_association": "MEMBER",
        }

    def check(self, repository: Repository, check: Check) -> dict[str, Any]:
        """`check-run`."""
        base = f"{self.api}/repos/{repository.full_name}/check-runs/{check.id}"
        html = f"{self.url}/{repository.full_name}/runs/{check.id}"
        output = {
            "title": None,
            "summary": None,
            "text": None,
            "annotations_count": 0,
            "annotations_url": f"{base}/annotations",
        }
        return {
            "id": check.id,
            "node_id": node("CR", check.id),
            "name": check.name,
            "head_sha": check.commit,
            "external_id": "",
            "url": base,
            "html_url": html,
            "details_url": html,
            "status": check.status,
            "conclusion": check.conclusion,
            "started_at": stamp(check.at),
            "completed_at": stamp(check.at) if check.conclusion else None,
            "output": output,
            "check_suite": {"id": check.id},
            "app": None,
            "pull_requests": [],
        }


def _time(moment: datetime | None) -> str | None:
    return stamp(moment) if moment else None


def failed(resource: str, field: str, code: str, message: str = "") -> ApiError:
    """422 with GitHub's list of errors."""
    error = {"resource": resource, "field": field, "code": code}
    return ApiError(422, {"message": "Validation Failed", "errors": [error | ({"message": message} if message else {})],
                          "documentation_url": "https://docs.github.com/rest"})  # fmt: skip


def error(status: int, message: str) -> ApiError:
    """An error with a text."""
    return ApiError(status, {"message": message, "documentation_url": "https://docs.github.com/rest"})
