"""The request to event-ingest for tokens and cost, from the agents' `agent.usage` events."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, Field, model_validator

from sandherd.contracts.labels import LabelKey, Selector
from sandherd.contracts.model import Count, MicroDollars, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

UsageGroup = Literal["project", "label", "task", "day", "model"]
"""What usage is grouped by. Days are in UTC."""
MAX_GROUPS: Final = 1000


class Usage(Model):
    """Tokens, and their cost in millionths of a US dollar."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_micro_usd: MicroDollars = 0


class GroupUsage(Usage):
    """The usage of one group."""

    group: str | None = None
    """The project, the label's value, the task, the day (`2026-11-20`) or the model; None: the events have none."""
    project: SafeName | None = None
    """For a task: its project."""


class UsageList(Model):
    """Usage by groups, the most expensive first; days in chronological order."""

    groups: list[GroupUsage]
    total: Usage
    """The usage of all groups, also of those beyond the limit."""
    group_count: Count
    """Number of groups, including those beyond the limit."""
    since: Moment | None = None
    """The time from which usage is added up; None: all usage in the history is added up."""


class GetUsage(Request[UsageList]):
    """Add up tokens and cost. Events of a sandbox belong to the task that the spawner gave the sandbox."""

    Answer: ClassVar[type[BaseModel]] = UsageList
    type: ClassVar[str] = "event-ingest.usage"
    by: UsageGroup = "task"
    label: LabelKey | None = None
    """The key of the label whose values are the groups, for `by: label`."""
    labels: Selector = Field(default_factory=dict)
    """Only tasks that have all of these labels."""
    tasks: list[SafeName] = Field(default_factory=list, max_length=MAX_GROUPS)
    """Only these tasks; empty: all tasks."""
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_GROUPS)] = 100
    """Maximum number of groups."""

    @model_validator(mode="after")
    def _label_is_named(self) -> Self:
        if (self.by == "label") != (self.label is not None):
            raise ValueError("label: the key to group by is needed for by=label, and only there")
        return self
