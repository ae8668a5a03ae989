"""The pull request of a branch, as it is stored in the branch's record. Pure."""

from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict

from sandherd.contracts.names import SafeName
from sandherd.contracts.pull_requests import PullRequestView

OPEN: Final = "open"


class PullRequestRecord(BaseModel):
    """A pull request that is wanted or exists, with its completed steps, each with its commit, and its next poll."""

    model_config = ConfigDict(frozen=True)

    shown: PullRequestView | None = None
    """The pull request at the forge, as of the last poll; None if it is not opened yet."""
    wanted: Literal["as_configured", "ready"] | None = None
    """A user's request to open or update it: as its options state, or ready for review."""
    merge_wanted: str | None = None
    """The commit that a user wants to be merged."""
    task: SafeName | None = None
    """The task that its title and body describe: the branch's last task when it was opened."""
    text: str = ""
    """The beginning of the text of `task`."""
    costs: dict[SafeName, int] = {}
    """The cost of each task of the branch, in micro-dollars. Stored here, because the records of tasks are removed
    earlier."""
    written: str | None = None
    """The commit for which its title and body were last written at the forge."""
    written_at: AwareDatetime | None = None
    """When they were last written."""
    changed_at: AwareDatetime | None = None
    """When it was last changed: by a step, by a user's request, or at the forge, as a poll has found."""
    poll_at: AwareDatetime | None = None
    """When the forge is polled next; None if it is not polled any more."""
    polls: int = 0
    """How often the forge reported no change since `changed_at`."""
    readied: str | None = None
    """The commit for which a step made it ready for review, once: a user may make it a draft again."""
    tried_at: AwareDatetime | None = None
    """When a merge was last tried."""
    queued_at: AwareDatetime | None = None
    """When the forge last accepted a request to merge it later."""
    first_queued_at: AwareDatetime | None = None
    """When the forge first accepted a request to merge this commit later."""
    conflicted: str | None = None
    """The commit whose conflicts with the base were published."""
    conflicted_at: AwareDatetime | None = None
    conflicts: tuple[str, ...] = ()
    """The conflicting paths of the commit `conflicted`."""
    followed: str | None = None
    """The commit for whose conflicts a task was submitted or refused."""
    follow_ups: tuple[SafeName, ...] = ()
    """The tasks that were submitted for conflicts."""
    unseen: str | None = None
    """The pushed commit that the forge has not shown since `unseen_since`."""
    unseen_since: AwareDatetime | None = None
    refused: dict[str, str] = {}
    """The commit for which the forge last refused a step, by the step's name."""
    problem: str | None = None
    """The text of the forge's last refusal."""

    @property
    def is_open(self) -> bool:
        """Whether the pull request exists, and is neither merged nor closed."""
        return self.shown is not None and self.shown.state == OPEN

    def is_stuck(self, now: datetime, limit: timedelta) -> bool:
        """Whether the forge accepted a request to merge it later, and has not merged it within the limit."""
        return self.first_queued_at is not None and now - self.first_queued_at >= limit

    def changed(self, **changes: Any) -> Self:
        """The record with these changes."""
        return self.model_copy(update=changes)

    def showing(self, **changes: Any) -> Self:
        """The record with these changes of `shown`."""
        return self.model_copy(update={"shown": self.shown.model_copy(update=changes)} if self.shown else {})

    def view(self) -> PullRequestView | None:
        """The pull request as clients see it."""
        if self.shown is None:
            return None
        return self.shown.model_copy(update={"queued": self.queued_at is not None, "problem": self.problem})
