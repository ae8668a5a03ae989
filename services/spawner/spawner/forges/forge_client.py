"""The common part of the clients of all forges: find or create a pull request, and update it."""

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from spawner.forges.api import ForgeApi
from spawner.forges.forge import PullRequest, PullRequestDraft, PullRequestState


class ForgeReply(Protocol):
    """A pull request as one forge reports it."""

    @property
    def pull_state(self) -> PullRequestState:
        """The state of the pull request."""
        ...


ReplyT = TypeVar("ReplyT", bound=ForgeReply)


class ForgeClient(ABC, Generic[ReplyT]):
    """A repository at a forge. `ReplyT` is the forge's form of a pull request."""

    def __init__(self, api: ForgeApi) -> None:
        self._api = api

    async def find_or_create_pull_request(self, draft: PullRequestDraft) -> PullRequest:
        """See `Forge`."""
        return await self._update_if_open(await self._find(draft) or await self._create(draft), draft)

    async def update_pull_request(self, number: int, draft: PullRequestDraft) -> PullRequest:
        """See `Forge`."""
        return await self._update_if_open(await self._pull(number), draft)

    async def _update_if_open(self, pull: ReplyT, draft: PullRequestDraft) -> PullRequest:
        if pull.pull_state is not PullRequestState.OPEN:
            return self._pull_request(pull)
        return await self._update_open(pull, draft)

    @abstractmethod
    async def _find(self, draft: PullRequestDraft) -> ReplyT | None:
        """The open pull request of a draft, else the one that was merged or closed with the draft's commit, or None."""

    @abstractmethod
    async def _create(self, draft: PullRequestDraft) -> ReplyT:
        """Create a pull request. Returns the existing one if it was created meanwhile."""

    @abstractmethod
    async def _pull(self, number: int) -> ReplyT:
        """The pull request with this number."""

    @abstractmethod
    async def _update_open(self, pull: ReplyT, draft: PullRequestDraft) -> PullRequest:
        """Update an open pull request by the draft. Text that users wrote is preserved."""

    @abstractmethod
    def _pull_request(self, pull: ReplyT, unapplied: tuple[str, ...] = ()) -> PullRequest:
        """The forge's reply in the common form."""
