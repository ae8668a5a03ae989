"""Requests to event-ingest for numbers of a project: its state and rates at present, and statistics of the history."""

from datetime import timedelta
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from sandherd.contracts.model import Count, MicroDollars, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.usage import MAX_GROUPS, Usage

StatisticGroup = Literal["task", "project", "harness", "model", "day"]
"""What statistics are grouped by. Days are in UTC."""
MAX_BUCKETS: Final = 1000
MAX_NEEDS: Final = 100
RATE_DAYS: Final = 31
"""Number of days for which rates are stored."""


class Statistics(Usage):
    """Tokens and cost, with the numbers of turns, calls and errors."""

    turns: Count = 0
    """Number of turns that began."""
    tool_calls: Count = 0
    errors: Count = 0
    """Number of the events `agent.error`, `agent.stream_error`, `agent.iteration_failed` and `agent.failed`."""


class GroupStatistics(Statistics):
    """The statistics of one group."""

    group: str | None = None
    """The task, project, harness, model, or day (`2026-11-20`); None: the events have none."""
    project: SafeName | None = None
    """For a task: its project."""


class StatisticsList(Model):
    """Statistics by groups, the most expensive first; days in chronological order."""

    groups: list[GroupStatistics]
    total: Statistics
    """The statistics of all groups, also of those beyond the limit."""
    group_count: Count
    """Number of groups, including those beyond the limit."""
    since: Moment | None = None
    """The time from which events are counted; None: all events in the history are counted."""


class GetStatistics(Request[StatisticsList]):
    """Count turns, tool calls and errors, and add up tokens and cost.

    Events of a sandbox belong to the task that the spawner gave the sandbox. If the groups are models, an event without
    a model counts for the last model of its sandbox.
    """

    Answer: ClassVar[type[BaseModel]] = StatisticsList
    type: ClassVar[str] = "event-ingest.statistics"
    by: StatisticGroup = "task"
    tasks: list[SafeName] = Field(default_factory=list, max_length=MAX_GROUPS)
    """Only these tasks; empty: all tasks."""
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_GROUPS)] = 100
    """Maximum number of groups."""


class RateBucket(Model):
    """The events that arrived within one interval, by the clock of the database."""

    begins_at: Moment
    events: Count = 0
    turns: Count = 0
    tool_calls: Count = 0
    errors: Count = 0
    cost_micro_usd: MicroDollars = 0


class UserNeed(Model):
    """Something that waits for a user: an approval to decide, a paused sandbox to resume, or a task that has failed."""

    kind: Literal["approval", "paused", "failed"]
    project: SafeName
    task: SafeName | None = None
    sandbox: SafeName | None = None
    approval_id: str | None = None
    since: Moment
    text: str = ""
    """The tool of an approval, or why the task failed, cut off at 300 characters."""


class ProjectOverview(Model):
    """The state of a project: how many tasks and sandboxes are in each state, rates, and what waits for a user."""

    tasks: dict[str, Count]
    """Number of tasks by state: all that have not ended, and those that were submitted within the interval."""
    sandboxes: dict[str, Count]
    """Number of sandboxes by state: all that have not ended, and those that were requested within the interval."""
    needs: list[UserNeed]
    """Approvals first, then paused sandboxes, then tasks that failed within the interval; each kind oldest first."""
    need_count: Count
    """Number of needs, including those beyond the limit."""
    buckets: list[RateBucket]
    """The buckets, oldest first; intervals without events are omitted."""
    bucket_seconds: Count
    since: Moment
    until: Moment


class GetOverview(Request[ProjectOverview]):
    """Show the state of a project, and rates of the last hours or days."""

    Answer: ClassVar[type[BaseModel]] = ProjectOverview
    type: ClassVar[str] = "event-ingest.overview"
    seconds: Annotated[int, Field(ge=60, le=RATE_DAYS * 86_400)] = 3600
    """The length of the interval, which ends now."""
    bucket_seconds: Annotated[int, Field(ge=60, le=86_400)] = 60
    """The length of a bucket, a multiple of 60."""
    needs: Annotated[int, Field(ge=0, le=MAX_NEEDS)] = 50
    """Maximum number of `needs`."""

    @model_validator(mode="after")
    def _check_buckets(self) -> Self:
        if self.bucket_seconds % 60:
            raise ValueError("bucket_seconds: not a multiple of 60")
        if self.seconds > self.bucket_seconds * MAX_BUCKETS:
            raise ValueError(f"bucket_seconds: more than {MAX_BUCKETS} buckets; choose longer ones")
        return self

    @property
    def interval(self) -> timedelta:
        """The length of the interval."""
        return timedelta(seconds=self.seconds)
