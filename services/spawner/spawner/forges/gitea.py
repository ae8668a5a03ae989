"""Gitea and Forgejo: pull requests by their REST API. Most of its replies have the same form as GitHub's."""

from fnmatch import fnmatchcase
from typing import Final

from spawner.forges.api import read_as
from spawner.forges.body_section import with_section
from spawner.forges.faults import ForgeError, ForgeFault, not_seen
from spawner.forges.forge import (
    Checks,
    ChecksState,
    MergeMethod,
    MergeOutcome,
    MergeResult,
    PullRequest,
    PullRequestDraft,
    PullRequestState,
    PullRequestStatus,
    Reviews,
    ReviewsState,
)
from spawner.forges.forge_client import ForgeClient
from spawner.forges.gitea_replies import WIP_PREFIX, BranchProtection, GiteaBranch, gitea_mergeability, is_draft
from spawner.forges.github_replies import CombinedStatus, CommitStatus, IssueReply
from spawner.forges.merge_refusals import REFUSALS, early_outcome, refused_merge
from spawner.forges.plain_text import plain
from spawner.forges.replies import (
    ForgeProject,
    ForgePull,
    Label,
    Review,
    ReviewRule,
    checks_of,
    is_same_text,
    required_default_branch,
    reviews_of,
    select_pull,
    split_draft_prefix,
)

_REPO: Final = "/repos/{owner}/{repo}"
_PULLS: Final = f"{_REPO}/pulls"
_PULL: Final = f"{_PULLS}/{{number}}"
_PAGE_ENTRIES: Final = 50
_MAX_PAGES: Final = 20
_COLOR: Final = "#ededed"
"""The color of new labels."""


class Gitea(ForgeClient[ForgePull]):
    """A repository at Gitea or Forgejo; a `Forge`."""

    # --- finding and creating ------------------------------------------------------------------------------------

    async def _update_open(self, pull: ForgePull, draft: PullRequestDraft) -> PullRequest:
        await self._update(pull, draft)
        unapplied = [*await self._add_labels(pull, draft), *await self._request_reviews(pull, draft)]
        return self._pull_request(pull, tuple(unapplied))

    async def _find(self, draft: PullRequestDraft) -> ForgePull | None:
        """See `ForgeClient`. Gitea can't search by head, so open and then the last changed closed ones are listed."""
        path = f"{_PULLS}{{?state,sort,limit}}"
        query: dict[str, str | int] = {"sort": "recentupdate", "limit": _PAGE_ENTRIES}
        open_pulls = await self._api.get_all(ForgePull, path, {**query, "state": "open"})
        pull = select_pull(open_pulls, draft, self._api.repository.path)
        if pull is None and draft.commit:
            closed_pulls = await self._api.get_all(ForgePull, path, {**query, "state": "closed"}, first_page=True)
            pull = select_pull(closed_pulls, draft, self._api.repository.path)
        return pull

    async def _create(self, draft: PullRequestDraft) -> ForgePull:
        title = f"{WIP_PREFIX if draft.draft else ''}{draft.title}"
        body = {"title": title, "body": draft.body, "head": draft.head, "base": draft.base}
        try:
            return read_as(ForgePull, await self._api.send("POST", _PULLS, body), _PULLS)
        except ForgeError as error:
            refused = error
        if refused.status == 409:
            existing = await self._find(draft)
            if existing is not None:
                return existing
        if refused.status in {404, 409}:
            raise not_seen(refused)
        raise refused

    async def _update(self, pull: ForgePull, draft: PullRequestDraft) -> None:
        body = with_section(pull.body, draft.body)
        if not is_same_text(body, pull.body):
            await self._api.send("PATCH", _PULL, {"body": body}, number=pull.number)

    async def _add_labels(self, pull: ForgePull, draft: PullRequestDraft) -> list[str]:
        present = {label.name for label in pull.labels or []}
        missing = [name for name in draft.labels if name not in present]
        if not missing:
            return []
        path = f"{_REPO}/labels{{?limit}}"
        ids_by_name = {label.name: label.id for label in await self._api.get_all(Label, path, {"limit": _PAGE_ENTRIES})}
        try:
            ids = [ids_by_name[name] if name in ids_by_name else await self._create_label(name) for name in missing]
            path = f"{_REPO}/issues/{{number}}/labels"
            await self._api.send("POST", path, {"labels": ids}, number=pull.number)
        except ForgeError as error:
            return [_refusal_sentence("labels", error)]
        return []

    async def _create_label(self, name: str) -> int:
        """Create a label and return its id. GitHub and GitLab create unknown labels themselves."""
        path = f"{_REPO}/labels"
        return read_as(Label, await self._api.send("POST", path, {"name": name, "color": _COLOR}), path).id

    async def _request_reviews(self, pull: ForgePull, draft: PullRequestDraft) -> list[str]:
        present = {user.login.casefold() for user in pull.requested_reviewers or []}
        missing = [name for name in draft.reviewers if name.casefold() not in present]
        if missing:
            reviewed = {review.user.login.casefold() for review in await self._review_list(pull.number) if review.user}
            missing = [name for name in missing if name.casefold() not in reviewed]
        if not missing:
            return []
        try:
            path = f"{_PULL}/requested_reviewers"
            await self._api.send("POST", path, {"reviewers": missing}, number=pull.number)
        except ForgeError as error:
            return [_refusal_sentence("reviewers", error)]
        return []

    async def mark_ready(self, number: int) -> None:
        """See `Forge`."""
        pull = await self._pull(number)
        if is_draft(pull) and pull.pull_state is PullRequestState.OPEN:
            await self._api.send("PATCH", _PULL, {"title": split_draft_prefix(pull.title)[1]}, number=number)

    # --- state ---------------------------------------------------------------------------------------------------

    async def pull_request(self, number: int) -> PullRequestStatus:
        """See `Forge`. Sends one request for a merged or closed pull request, else at least four."""
        pull = await self._pull(number)
        checks, reviews = Checks(ChecksState.NONE), Reviews(ReviewsState.NONE)
        official_reviews = reviews
        if pull.pull_state is PullRequestState.OPEN:
            branch = await self._branch(pull.base.ref) or GiteaBranch()
            results = [(one.context, one.result) for one in await self._statuses(pull.head.sha)]
            checks = checks_of(results, branch.required_checks())
            rule = ReviewRule(branch.required_approvals)
            listed = await self._review_list(number)
            reviews = reviews_of(listed, pull.head.sha, rule)
            official_reviews = reviews_of([review for review in listed if review.official], pull.head.sha, rule)
        return PullRequestStatus(self._pull_request(pull), gitea_mergeability(pull, official_reviews), checks, reviews)

    async def _statuses(self, commit: str) -> list[CommitStatus]:
        """The last status of each context. Pages are requested by number, because no header links them.

        Raises `ForgeError`.
        """
        path, statuses = f"{_REPO}/commits/{{commit}}/status{{?limit,page}}", list[CommitStatus]()
        for page in range(1, _MAX_PAGES + 1):
            values: dict[str, str | int] = {"commit": commit, "limit": _PAGE_ENTRIES}
            combined = await self._api.get(CombinedStatus, path, **values, **({"page": page} if page > 1 else {}))
            statuses += combined.statuses or []
            if len(combined.statuses or []) < _PAGE_ENTRIES and combined.total_count <= len(statuses):
                return statuses
        raise ForgeError(ForgeFault.REFUSED, f"the commit has more than {_MAX_PAGES * _PAGE_ENTRIES} statuses")

    async def _pull(self, number: int) -> ForgePull:
        return await self._api.get(ForgePull, _PULL, number=number)

    async def _review_list(self, number: int) -> list[Review]:
        return await self._api.get_all(Review, f"{_PULL}/reviews{{?limit}}", {"number": number, "limit": _PAGE_ENTRIES})

    def _pull_request(self, pull: ForgePull, unapplied: tuple[str, ...] = ()) -> PullRequest:
        state = pull.pull_state
        return PullRequest(
            number=pull.number,
            url=f"{self._api.repository.url}/pulls/{pull.number}",
            state=state,
            head=plain(pull.head.ref, 255),
            base=plain(pull.base.ref, 255),
            head_commit=plain(pull.head.sha, 64),
            draft=is_draft(pull),
            merged_commit=pull.merge_commit_sha or None if state is PullRequestState.MERGED else None,
            unapplied=unapplied,
        )

    # --- merging -------------------------------------------------------------------------------------------------

    async def merge(
        self, number: int, commit: str, method: MergeMethod = MergeMethod.MERGE, *, queue: bool = False
    ) -> MergeOutcome:
        """See `Forge`. With `queue`, Gitea merges when all checks have passed.

        `mergeable` is also false while Gitea checks for conflicts, so false is treated as unknown.
        """
        pull = await self._pull(number)
        early = early_outcome(pull.model_copy(update={"mergeable": pull.mergeable or None}), commit)
        if early:
            return early
        body = {"Do": method.value, "head_commit_id": commit, "delete_branch_after_merge": False}
        body |= {"merge_when_checks_succeed": True} if queue else {}
        try:
            await self._api.send("POST", f"{_PULL}/merge", body, number=number)
        except ForgeError as error:
            if error.status not in REFUSALS:
                raise
            refused = error
        else:
            refused = ForgeError(ForgeFault.UNAVAILABLE, "the merge is not finished")
        pull = await self._pull(number)
        is_scheduled = refused.status is None or "already scheduled" in refused.reason
        if queue and is_scheduled and pull.pull_state is PullRequestState.OPEN:
            return MergeOutcome(MergeResult.QUEUED)
        return refused_merge(refused, pull, commit)

    # --- the repository ------------------------------------------------------------------------------------------

    async def _branch(self, branch: str) -> GiteaBranch | None:
        try:
            return await self._api.get(GiteaBranch, f"{_REPO}/branches/{{branch}}", branch=branch)
        except ForgeError as error:
            if error.status == 404:
                return None
            raise

    async def branch_protected(self, branch: str) -> bool:
        """See `Forge`. For a branch that does not exist, only an administrator of the repository can read the rules."""
        existing = await self._branch(branch)
        if existing is not None:
            return existing.protected
        try:
            rules = await self._api.get_all(BranchProtection, f"{_REPO}/branch_protections", {})
        except ForgeError as error:
            if error.status in {403, 404}:
                return False
            raise
        return any(fnmatchcase(branch, rule.rule_name or rule.branch_name) for rule in rules)

    async def default_branch(self) -> str:
        """See `Forge`."""
        return required_default_branch((await self._api.get(ForgeProject, _REPO)).default_branch)

    async def issue_exists(self, number: int) -> bool:
        """See `Forge`."""
        try:
            issue = await self._api.get(IssueReply, f"{_REPO}/issues/{{number}}", number=number)
        except ForgeError as error:
            if error.fault is ForgeFault.NOT_FOUND:
                return False
            raise
        return issue.pull_request is None


def _refusal_sentence(part: str, error: ForgeError) -> str:
    """A sentence about refused labels or reviewers (`part`), without which the pull request is usable.

    Raises the error if it is transient.
    """
    if not error.permanent:
        raise error
    return f"{part} were refused: {error.reason or error}"
