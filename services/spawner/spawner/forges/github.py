"""GitHub, and GitHub Enterprise Server: the REST API, and GraphQL for the merge queue."""

import re
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
from spawner.forges.github_replies import (
    ENQUEUE,
    MARK_READY,
    BranchRule,
    CheckRun,
    CommitStatus,
    GithubBranch,
    GraphReply,
    IssueReply,
    MergeReply,
    github_checks,
    github_mergeability,
    graphql_url,
    prevent_push,
    refusal_text,
    required_checks,
    review_rule,
)
from spawner.forges.merge_refusals import REFUSALS, early_outcome, refused_merge
from spawner.forges.plain_text import plain
from spawner.forges.replies import (
    ForgeProject,
    ForgePull,
    Review,
    is_same_text,
    required_default_branch,
    reviews_of,
    select_pull,
)

_PULLS: Final = "/repos/{owner}/{repo}/pulls"
_PULL: Final = "/repos/{owner}/{repo}/pulls/{number}"
_QUEUED_ALREADY: Final = re.compile(r"already (in the (merge )?queue|queued|enqueued)", re.IGNORECASE)


class Github(ForgeClient[ForgePull]):
    """A repository at GitHub; a `Forge`."""

    # --- finding and creating ------------------------------------------------------------------------------------

    async def _update_open(self, pull: ForgePull, draft: PullRequestDraft) -> PullRequest:
        unapplied = [*await self._update(pull, draft), *await self._request_reviews(pull, draft)]
        return self._pull_request(pull, tuple(unapplied))

    async def _find(self, draft: PullRequestDraft) -> ForgePull | None:
        path = f"{_PULLS}{{?head,base,state,sort,direction,per_page}}"
        head = f"{self._api.repository.owner}:{draft.head}"
        query = {"head": head, "base": draft.base, "state": "all", "sort": "created", "direction": "desc"}
        pulls = await self._api.get_all(ForgePull, path, {**query, "per_page": 100})
        return select_pull(pulls, draft, self._api.repository.path)

    async def _create(self, draft: PullRequestDraft) -> ForgePull:
        body = {"title": draft.title, "body": draft.body, "head": draft.head, "base": draft.base, "draft": draft.draft}
        try:
            return read_as(ForgePull, await self._api.send("POST", _PULLS, body), _PULLS)
        except ForgeError as error:
            refused = error
        if refused.status == 422 and "already exists" in refused.reason:
            existing = await self._find(draft)
            if existing is not None:
                return existing
            raise not_seen(refused)
        if refused.status == 422 and "head invalid" in refused.reason:
            raise not_seen(refused)
        raise refused

    async def _update(self, pull: ForgePull, draft: PullRequestDraft) -> list[str]:
        body = with_section(pull.body, draft.body)
        if not is_same_text(body, pull.body):
            await self._api.send("PATCH", _PULL, {"body": body}, number=pull.number)
        present = {label.name.casefold() for label in pull.labels or []}
        labels = [label for label in draft.labels if label.casefold() not in present]
        if not labels:
            return []
        path = "/repos/{owner}/{repo}/issues/{number}/labels"
        return await self._send_optional("labels", path, {"labels": labels}, pull.number)

    async def _request_reviews(self, pull: ForgePull, draft: PullRequestDraft) -> list[str]:
        """Request missing reviews. A reviewer who has reviewed already gets no second request."""
        present = {account.login.casefold() for account in pull.requested_reviewers or []}
        missing = [name for name in draft.reviewers if name.casefold() not in present]
        if missing:
            reviewed = {review.user.login.casefold() for review in await self._review_list(pull.number) if review.user}
            missing = [name for name in missing if name.casefold() not in reviewed]
        if not missing:
            return []
        return await self._send_optional(
            "reviewers", f"{_PULL}/requested_reviewers", {"reviewers": missing}, pull.number
        )

    async def _send_optional(self, part: str, path: str, body: dict[str, Any], number: int) -> list[str]:
        """Send labels or reviewers (`part`), without which the pull request is usable. Return a sentence if refused."""
        try:
            await self._api.send("POST", path, body, number=number)
        except ForgeError as error:
            if not error.permanent:
                raise
            return [f"{part} were refused: {error.reason or error}"]
        return []

    async def mark_ready(self, number: int) -> None:
        """See `Forge`."""
        pull = await self._pull(number)
        if pull.draft and pull.pull_state is PullRequestState.OPEN:
            reason = await self._mutate(MARK_READY, {"id": pull.node_id})
            if reason:
                raise ForgeError(ForgeFault.REFUSED, "the draft can't be made ready", reason=reason)

    # --- state ---------------------------------------------------------------------------------------------------

    async def pull_request(self, number: int) -> PullRequestStatus:
        """See `Forge`. Sends one request for a merged or closed pull request, else at least five."""
        pull = await self._pull(number)
        if pull.pull_state is not PullRequestState.OPEN:
            checks, reviews = Checks(ChecksState.NONE), Reviews(ReviewsState.NONE)
        else:
            rules = await self._rules(pull.base.ref)
            checks = await self._checks(pull.head.sha, rules)
            reviews = reviews_of(await self._review_list(number), pull.head.sha, review_rule(rules))
        return PullRequestStatus(self._pull_request(pull), github_mergeability(pull, checks, reviews), checks, reviews)

    async def _pull(self, number: int) -> ForgePull:
        return await self._api.get(ForgePull, _PULL, number=number)

    async def _review_list(self, number: int) -> list[Review]:
        return await self._api.get_all(Review, f"{_PULL}/reviews{{?per_page}}", {"number": number, "per_page": 100})

    async def _rules(self, branch: str) -> list[BranchRule]:
        path = "/repos/{owner}/{repo}/rules/branches/{branch}{?per_page}"
        try:
            return await self._api.get_all(BranchRule, path, {"branch": branch, "per_page": 100})
        except ForgeError as error:
            if error.status == 404:
                return []  # a GitHub Enterprise Server without rulesets
            raise

    async def _checks(self, commit: str, rules: list[BranchRule]) -> Checks:
        path = "/repos/{owner}/{repo}/commits/{commit}"
        values: dict[str, str | int] = {"commit": commit, "per_page": 100}
        runs = await self._api.get_all(CheckRun, f"{path}/check-runs{{?per_page}}", values, key="check_runs")
        statuses = await self._api.get_all(CommitStatus, f"{path}/status{{?per_page}}", values, key="statuses")
        return github_checks(runs, statuses, required_checks(rules))

    def _pull_request(self, pull: ForgePull, unapplied: tuple[str, ...] = ()) -> PullRequest:
        state = pull.pull_state
        return PullRequest(
            number=pull.number,
            url=f"{self._api.repository.url}/pull/{pull.number}",
            state=state,
            head=plain(pull.head.ref, 255),
            base=plain(pull.base.ref, 255),
            head_commit=plain(pull.head.sha, 64),
            draft=pull.draft,
            merged_commit=pull.merge_commit_sha or None if state is PullRequestState.MERGED else None,
            unapplied=unapplied,
        )

    # --- merging -------------------------------------------------------------------------------------------------

    async def merge(
        self, number: int, commit: str, method: MergeMethod = MergeMethod.MERGE, *, queue: bool = False
    ) -> MergeOutcome:
        """See `Forge`. If the base branch has a merge queue, the pull request is added to it."""
        pull = await self._pull(number)
        early = early_outcome(pull, commit)
        if early or queue:
            return early or await self._enqueue(pull, commit)
        body = {"sha": commit, "merge_method": method.value}
        try:
            reply = await self._api.send("PUT", f"{_PULL}/merge", body, number=number)
        except ForgeError as error:
            if error.status not in REFUSALS:
                raise
            refused = error
        else:
            return MergeOutcome(MergeResult.MERGED, commit=read_as(MergeReply, reply, _PULL).sha or None)
        pull = await self._pull(number)
        outcome = refused_merge(refused, pull, commit)
        needs_queue = (outcome.result, outcome.obstacle) == (MergeResult.WAITING, Obstacle.QUEUE)
        return await self._enqueue(pull, commit) if needs_queue else outcome

    async def _enqueue(self, pull: ForgePull, commit: str) -> MergeOutcome:
        reason = await self._mutate(ENQUEUE, {"id": pull.node_id, "head": commit})
        if not reason or _QUEUED_ALREADY.search(reason):
            return MergeOutcome(MergeResult.QUEUED)
        return refused_merge(ForgeError(ForgeFault.REFUSED, "graphql", reason=reason), pull, commit)

    async def _mutate(self, query: str, variables: dict[str, str]) -> str:
        """Send a GraphQL mutation. Returns why it was refused; empty if it took effect. Raises `ForgeError`."""
        url = graphql_url(self._api.base_url)
        reply = await self._api.send("POST", url, {"query": query, "variables": variables})
        return refusal_text(read_as(GraphReply, reply, "graphql"))

    # --- the repository ------------------------------------------------------------------------------------------

    async def branch_protected(self, branch: str) -> bool:
        """See `Forge`. A ruleset that the token can't read is not considered. GitHub then refuses the push."""
        if prevent_push(await self._rules(branch)):
            return True
        try:
            existing = await self._api.get(GithubBranch, "/repos/{owner}/{repo}/branches/{branch}", branch=branch)
        except ForgeError as error:
            if error.status == 404:
                return False
            raise
        return existing.protected

    async def default_branch(self) -> str:
        """See `Forge`."""
        return required_default_branch((await self._api.get(ForgeProject, "/repos/{owner}/{repo}")).default_branch)

    async def issue_exists(self, number: int) -> bool:
        """See `Forge`."""
        try:
            issue = await self._api.get(IssueReply, "/repos/{owner}/{repo}/issues/{number}", number=number)
        except ForgeError as error:
            if error.fault is ForgeFault.NOT_FOUND:
                return False
            raise
        return issue.pull_request is None
