"""The terms of a branch's pull request: a task's options, and the spawner's settings for the others. Pure."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from sandherd.contracts.pull_request_choices import MergeMethod, MergePolicy, PullRequestMode
from sandherd.contracts.pull_requests import PullRequestOptions
from sandherd.settings import Settings
from spawner.forges.pull_request_text import DEFAULT_BODY, DEFAULT_TITLE

NO_OPTIONS: Final = PullRequestOptions()


@dataclass(frozen=True)
class PullRequestTerms:
    """The terms of opening a pull request, of its content, and of its merge."""

    open: PullRequestMode = "none"
    merge: MergePolicy = "never"
    method: MergeMethod = "merge"
    labels: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()
    title: str = DEFAULT_TITLE
    body: str = DEFAULT_BODY
    follow_up: bool = False
    session_url: str | None = None
    approval: tuple[str, ...] = ()
    """Patterns of paths whose changes a user has to approve. No option of a task changes them."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The terms in the spawner's settings."""
        return cls(
            open=settings.pull_requests or "none",
            merge=settings.merge_policy,
            method=settings.merge_method,
            labels=tuple(settings.pull_request_labels),
            reviewers=tuple(settings.pull_request_reviewers),
            title=settings.pull_request_title or DEFAULT_TITLE,
            body=settings.pull_request_body or DEFAULT_BODY,
            follow_up=settings.conflict_follow_up,
            session_url=settings.session_url,
            approval=tuple(settings.repository_approval),
        )

    def with_options(self, options: PullRequestOptions | None) -> "PullRequestTerms":
        """These terms with the options of a task.

        If the options choose a merge, and neither they nor the settings choose how a pull request is opened, it is
        opened ready for review.
        """
        chosen = (options or NO_OPTIONS).model_dump(exclude_none=True)
        if chosen.get("merge", "never") != "never" and self.open == "none":
            chosen.setdefault("open", "ready")
        return PullRequestTerms(**{**self.__dict__, **chosen})


@dataclass(frozen=True)
class PollIntervals:
    """The delays between polls of a pull request, and the time limits for its steps."""

    first: timedelta = timedelta(seconds=5)
    """The delay of the first poll after a change. Each poll without a change doubles the delay."""
    longest: timedelta = timedelta(minutes=5)
    """The maximum of the doubled delay."""
    slow_after: timedelta = timedelta(days=1)
    """After this time without a change, the delay is `slow`."""
    slow: timedelta = timedelta(hours=1)
    age: timedelta = timedelta(days=30)
    """After this time without a change, the pull request is not polled any more."""
    no_checks: timedelta = timedelta(minutes=1)
    """The time that checks have to begin. A commit without checks may be merged after this time."""
    unseen: timedelta = timedelta(minutes=5)
    """The time that a forge has to show a pushed branch. After this time the step is refused."""
    queued: timedelta = timedelta(hours=1)
    """The time that a merge queue has. After this time the pull request is added to it again, and counts as stuck."""

    def delay(self, polls: int, unchanged: timedelta) -> timedelta | None:
        """The delay until the next poll; None if the pull request is not polled any more.

        `polls`: the number of polls without a change. `unchanged`: the time since the last change.
        """
        if unchanged >= self.age:
            return None
        if unchanged >= self.slow_after:
            return self.slow
        return min(self.first * (1 << min(polls, 16)), self.longest)
