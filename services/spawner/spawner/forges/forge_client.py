"""The common part of the clients of all forges: find or create a pull request, and update it."""

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from spawner.forges.api import ForgeApi
from spawner.forges.forge import PullRequest, PullRequestDraft, PullRequestState


class ForgeReply(Protocol):
    """A pull request as one forge reports it."""

    @property
    def current(self) -> PullRequestState:
        """Its state."""
        ...


ReplyT = TypeVar("ReplyT", bound=ForgeReply)


class ForgeClient(ABC, Generic[ReplyT]):
    """A repository at a forge, which reports a pull request as `ReplyT`."""

    def __init__(self, api: ForgeApi) -> None:
        self._api = api

    async def find_or_create_pull_request(self, draft: PullRequestDraft) -> PullRequest:
        """See `Forge`."""
        return await self._updated_if_open(await self._found(draft) or await self._created(draft), draft)

    async def update_pull_request(self, number: int, draft: PullRequestDraft) -> PullRequest:
        """See `Forge`."""
        return await self._updated_if_open(await self._pull(number), draft)

    async def _updated_if_open(self, pull: ReplyT, draft: PullRequestDraft) -> PullRequest:
        if pull.current is not PullRequestState.OPEN:
            return self._pull_request(pull)
        return await self._updated(pull, draft)

    @abstractmethod
    async def _found(self, draft: PullRequestDraft) -> ReplyT | None:
        """The open pull request of a draft, or the one that was merged or closed with the draft's commit."""

    @abstractmethod
    async def _created(self, draft: PullRequestDraft) -> ReplyT:
        """A new pull request, or the one that was created meanwhile."""

    @abstractmethod
    async def _pull(self, number: int) -> ReplyT:
        """The pull request with this number."""

    @abstractmethod
    async def _updated(self, pull: ReplyT, draft: PullRequestDraft) -> PullRequest:
        """Update an open pull request by the draft. Text of users is preserved."""

    @abstractmethod
    def _pull_request(self, pull: ReplyT, unapplied: tuple[str, ...] = ()) -> PullRequest:
        """The common form of a forge's reply."""
