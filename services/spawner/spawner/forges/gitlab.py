"""GitLab: merge requests by its REST API."""

import re
from fnmatch import fnmatchcase
from typing import Any, Final

from spawner.forges.api import read_as
from spawner.forges.body_section import with_section
from spawner.forges.faults import ForgeError, ForgeFault, not_seen
from spawner.forges.forge import (
    Checks,
    ChecksState,
    MergeMethod,
    MergeOutcome,
    MergeResult,
    Obstacle,
    PullRequest,
    PullRequestDraft,
    PullRequestState,
    PullRequestStatus,
    Reviews,
    ReviewsState,
)
from spawner.forges.forge_client import ForgeClient
from spawner.forges.gitlab_replies import (
    DRAFT_PREFIX,
    Approvals,
    GitlabBranch,
    GitlabIssue,
    GitlabProject,
    GitlabUser,
    JobStatus,
    MergeRequest,
    early_request_outcome,
    gitlab_checks,
    gitlab_mergeability,
    gitlab_reviews,
    merge_outcome,
    refused_request,
    select_request,
)
from spawner.forges.plain_text import plain
from spawner.forges.replies import is_same_text, required_default_branch, split_draft_prefix

_PROJECT: Final = "/projects/{project}"
_REQUESTS: Final = f"{_PROJECT}/merge_requests"
_REQUEST: Final = f"{_REQUESTS}/{{number}}"
_REFUSALS: Final = frozenset({405, 406, 409, 422})
_CONFLICT: Final = 409
_NOT_SEEN_PATTERN: Final = re.compile(r"source.branch.*(does not exist|invalid)", re.IGNORECASE)


class Gitlab(ForgeClient[MergeRequest]):
    """A project at GitLab; a `Forge`."""

    # --- finding and creating ------------------------------------------------------------------------------------

    async def _update_open(self, pull: MergeRequest, draft: PullRequestDraft) -> PullRequest:
        changes, unapplied = await self._changes(pull, draft)
        if changes:
            reply = await self._api.send("PUT", _REQUEST, changes, number=pull.iid)
            pull = read_as(MergeRequest, reply, _REQUEST)
        return self._pull_request(pull, tuple(unapplied))

    async def _find(self, draft: PullRequestDraft) -> MergeRequest | None:
        path = f"{_REQUESTS}{{?source_branch,target_branch,state,order_by,sort,per_page}}"
        query = {"source_branch": draft.head, "target_branch": draft.base, "state": "all", "order_by": "created_at"}
        requests = await self._api.get_all(MergeRequest, path, {**query, "sort": "desc", "per_page": 100})
        return select_request(requests, draft)

    async def _create(self, draft: PullRequestDraft) -> MergeRequest:
        body = {
            "source_branch": draft.head,
            "target_branch": draft.base,
            "title": f"{DRAFT_PREFIX if draft.draft else ''}{draft.title}",
            "description": draft.body,
            "labels": ",".join(draft.labels),
            "remove_source_branch": False,
        }
        try:
            return read_as(MergeRequest, await self._api.send("POST", _REQUESTS, body), _REQUESTS)
        except ForgeError as error:
            refused = error
        if refused.status == _CONFLICT and "already exists" in refused.reason:
            existing = await self._find(draft)
            if existing is not None:
                return existing
            raise not_seen(refused)
        raise not_seen(refused) if _NOT_SEEN_PATTERN.search(refused.reason) else refused

    async def _changes(self, request: MergeRequest, draft: PullRequestDraft) -> tuple[dict[str, Any], list[str]]:
        """The fields to change, and a sentence for each impossible change. The field `draft` is left to users."""
        changes: dict[str, Any] = {}
        body = with_section(request.description, draft.body)
        if not is_same_text(body, request.description):
            changes["description"] = body
        labels = [label for label in draft.labels if label not in request.labels]
        if labels:
            changes["add_labels"] = ",".join(labels)
        reviewers, unapplied = await self._reviewers(request, draft)
        if reviewers:
            changes["reviewer_ids"] = reviewers
        return changes, unapplied

    async def _reviewers(self, request: MergeRequest, draft: PullRequestDraft) -> tuple[list[int], list[str]]:
        """The ids of all reviewers, or none if no reviewer is to be added; and a sentence for each unknown reviewer."""
        present = {user.username.casefold(): user.id for user in request.reviewers or []}
        missing = [name for name in draft.reviewers if name.casefold() not in present]
        ids, unapplied = [], []
        for name in missing:
            users = await self._api.get_all(GitlabUser, "/users{?username}", {"username": name})
            ids += [user.id for user in users[:1]]
            unapplied += [] if users else [f"reviewers were refused: there is no user {plain(name, 60)}"]
        return [*present.values(), *ids] if ids else [], unapplied

    async def mark_ready(self, number: int) -> None:
        """See `Forge`."""
        request = await self._pull(number)
        if request.draft and request.pull_state is PullRequestState.OPEN:
            await self._api.send("PUT", _REQUEST, {"title": split_draft_prefix(request.title)[1]}, number=number)

    # --- state ---------------------------------------------------------------------------------------------------

    async def pull_request(self, number: int) -> PullRequestStatus:
        """See `Forge`. Sends one request for a merged or closed pull request, else at least three."""
        request = await self._pull(number)
        mergeability = gitlab_mergeability(request)
        if request.pull_state is not PullRequestState.OPEN:
            no_facts = Checks(ChecksState.NONE), Reviews(ReviewsState.NONE)
            return PullRequestStatus(self._pull_request(request), mergeability, *no_facts)
        path = f"{_PROJECT}/repository/commits/{{commit}}/statuses{{?per_page}}"
        jobs = await self._api.get_all(JobStatus, path, {"commit": request.sha, "per_page": 100})
        reviews = gitlab_reviews(request, await self._approvals(number))
        return PullRequestStatus(self._pull_request(request), mergeability, gitlab_checks(request, jobs), reviews)

    async def _pull(self, number: int) -> MergeRequest:
        return await self._api.get(MergeRequest, _REQUEST, number=number)

    async def _approvals(self, number: int) -> Approvals:
        try:
            return await self._api.get(Approvals, f"{_REQUEST}/approvals", number=number)
        except ForgeError as error:
            if error.status in {403, 404}:
                return Approvals()  # an edition without approvals
            raise

    def _pull_request(self, pull: MergeRequest, unapplied: tuple[str, ...] = ()) -> PullRequest:
        return PullRequest(
            number=pull.iid,
            url=f"{self._api.repository.url}/-/merge_requests/{pull.iid}",
            state=pull.pull_state,
            head=plain(pull.source_branch, 255),
            base=plain(pull.target_branch, 255),
            head_commit=plain(pull.sha, 64),
            draft=pull.draft,
            merged_commit=pull.merged_commit,
            unapplied=unapplied,
        )

    # --- merging -------------------------------------------------------------------------------------------------

    async def merge(
        self, number: int, commit: str, method: MergeMethod = MergeMethod.MERGE, *, queue: bool = False
    ) -> MergeOutcome:
        """See `Forge`. A setting of the project decides whether GitLab creates a merge commit or fast-forwards."""
        if method is MergeMethod.REBASE and (await self._project()).merge_method == "merge":
            return MergeOutcome(
                MergeResult.REFUSED, obstacle=Obstacle.METHOD, reason="the project permits merge commits only"
            )
        request = await self._pull(number)
        early = early_request_outcome(request, commit)
        if early:
            return early
        later = {"auto_merge": True, "merge_when_pipeline_succeeds": True} if queue else {}
        squash = method is MergeMethod.SQUASH
        body = {"sha": commit, "squash": squash, "should_remove_source_branch": False, **later}
        try:
            reply = await self._api.send("PUT", f"{_REQUEST}/merge", body, number=number)
        except ForgeError as error:
            if error.status not in _REFUSALS:
                raise
            refused = error
        else:
            return merge_outcome(read_as(MergeRequest, reply, _REQUEST), commit, queue=queue)
        is_moved = refused.status == _CONFLICT
        return refused_request(await self._pull(number), commit, refused.reason, moved=is_moved)

    # --- the repository ------------------------------------------------------------------------------------------

    async def _project(self) -> GitlabProject:
        return await self._api.get(GitlabProject, _PROJECT)

    async def branch_protected(self, branch: str) -> bool:
        """See `Forge`. For a branch that does not exist, only a maintainer can read the rules."""
        try:
            path = f"{_PROJECT}/repository/branches/{{branch}}"
            return (await self._api.get(GitlabBranch, path, branch=branch)).protected
        except ForgeError as error:
            if error.status != 404:
                raise
        try:
            path = f"{_PROJECT}/protected_branches{{?per_page}}"
            rules = await self._api.get_all(GitlabBranch, path, {"per_page": 100})
        except ForgeError as error:
            if error.status in {403, 404}:
                return False
            raise
        # The only wildcard of GitLab's rules is `*`, so the other characters with a meaning in fnmatch are escaped.
        return any(fnmatchcase(branch, re.sub(r"([\[\]?])", r"[\1]", rule.name)) for rule in rules)

    async def default_branch(self) -> str:
        """See `Forge`."""
        return required_default_branch((await self._project()).default_branch)

    async def issue_exists(self, number: int) -> bool:
        """See `Forge`."""
        try:
            issue = await self._api.get(GitlabIssue, f"{_PROJECT}/issues/{{number}}", number=number)
        except ForgeError as error:
            if error.fault is ForgeFault.NOT_FOUND:
                return False
            raise
        return issue.moved_to_id is None
