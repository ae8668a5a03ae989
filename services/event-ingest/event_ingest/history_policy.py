"""Rules for dropping days of the history: when a day is due, and what prevents its drop. Pure.

A partition has the events of all projects whose ids are of one UTC day. So it is dropped when none of the projects that
have events in it needs them any more, and no hold is on any of them. The day of an event is that of its id, whenever it
was stored. If that day has no partition, the retention of the event begins when it was stored.

Before that, a day can be reduced: its partition is replaced by one without the events that have a shorter retention, by
their type or project.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

NOTICE_PERIOD: Final = timedelta(days=7)
"""The time from the upgrade of a database to the first drop of a day, in which operators can prevent the drop."""
MAX_DAYS: Final = 36_500
"""The longest retention in days."""


@dataclass(frozen=True)
class RetentionPolicy:
    """The retention of events, in days. 0 means forever."""

    days: int
    project_days: Mapping[str, int] = field(default_factory=dict)
    """The retention of projects that have their own."""
    type_days: Mapping[str, int] = field(default_factory=dict)
    """The shorter retention of some types of events, in every project. 0 means that a type has none."""
    task_days: int = 0
    """The number of days for which the rows of an ended task stay, unless its events stay longer. 0 means forever."""

    def of(self, project: str) -> int:
        """The retention of a project, in days."""
        return self.project_days.get(project, self.days)

    @property
    def varies(self) -> bool:
        """Whether the date at which a partition is due depends on the projects in it."""
        return any(days != self.days for days in self.project_days.values())


@dataclass(frozen=True, slots=True)
class PartitionContents:
    """The facts that decide when a partition is dropped: its projects, and whether there is a hold on one of them."""

    projects: frozenset[str] = frozenset()
    held: bool = False
    restored_until: datetime | None = None
    """The time until which a restored day stays at least."""


def due_at(day: date, retentions: Iterable[int], not_before: datetime) -> datetime | None:
    """When all events of a day are due, if their retentions in days are these (0 means forever). None means never."""
    days = [MAX_DAYS + 1 if retention == 0 else retention for retention in retentions]
    if not days or max(days) > MAX_DAYS:
        return None
    return max(_end_of_day(day) + timedelta(days=max(days)), not_before)


def partition_due_at(
    day: date, projects: Collection[str], policy: RetentionPolicy, not_before: datetime
) -> datetime | None:
    """When no project needs a day's partition any more. None means never."""
    retentions = [policy.of(project) for project in projects] or [policy.days]
    return due_at(day, retentions, not_before)


def first_due_at(
    day: date, projects: Collection[str], policy: RetentionPolicy, not_before: datetime
) -> datetime | None:
    """When the first of these projects does not need its events of a day any more. None means never."""
    due = (due_at(day, [policy.of(project)], not_before) for project in projects)
    return min((due_time for due_time in due if due_time is not None), default=None)


def contents_due_at(
    day: date, contents: PartitionContents, policy: RetentionPolicy, not_before: datetime
) -> datetime | None:
    """When no project needs a day's partition any more, and a restored day need not stay any longer.

    None means never.
    """
    return partition_due_at(day, contents.projects, policy, max(not_before, contents.restored_until or not_before))


def may_be_due(day: date, policy: RetentionPolicy, not_before: datetime, now: datetime) -> bool:
    """Whether a day may be due for some project. If not, its contents need not be read."""
    candidates = [days for days in {policy.days, *policy.project_days.values()} if days]
    earliest = due_at(day, [min(candidates)], not_before) if candidates else None
    return earliest is not None and earliest <= now


@dataclass(frozen=True, slots=True)
class ExpiredEvents:
    """The events that are to be removed from a day that stays: those of some types, and those of some projects."""

    types: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.types or self.projects)


def expired_types(day: date, policy: RetentionPolicy, not_before: datetime, now: datetime) -> frozenset[str]:
    """The types whose events are to be removed from a day."""
    return frozenset(name for name, days in policy.type_days.items() if _is_expired(day, days, not_before, now))


def expired_projects(
    day: date, contents: PartitionContents, policy: RetentionPolicy, not_before: datetime, now: datetime
) -> frozenset[str]:
    """The projects that do not need their events of a day any more; empty if none needs them: the day is dropped."""
    expired = {project for project in contents.projects if _is_expired(day, policy.of(project), not_before, now)}
    return frozenset(expired) if expired != contents.projects else frozenset()


def may_be_reduced(contents: PartitionContents, now: datetime) -> bool:
    """Whether neither a hold nor a restore prevents the reduction of a day."""
    return not contents.held and (contents.restored_until is None or contents.restored_until <= now)


def next_reduction(
    days: Collection[date], removed_types: Mapping[date, Collection[str]], policy: RetentionPolicy, not_before: datetime
) -> datetime | None:
    """When the next of these days is to be reduced because of a type of events. None means never.

    `removed_types` has the types that were removed from each day before.
    """
    due = (
        due_at(day, [number], not_before)
        for day in days
        for name, number in policy.type_days.items()
        if name not in removed_types.get(day, ())
    )
    return min((due_time for due_time in due if due_time is not None), default=None)


def _is_expired(day: date, days: int, not_before: datetime, now: datetime) -> bool:
    due = due_at(day, [days], not_before)
    return due is not None and due <= now


@dataclass(frozen=True, slots=True)
class ExaminedDay:
    """A day, the time from which on no project needs it, and whether there is a hold on it."""

    day: date
    due_at: datetime | None
    held: bool

    def is_due(self, now: datetime) -> bool:
        """Whether no project needs the day any more."""
        return self.due_at is not None and self.due_at <= now

    def may_be_dropped(self, now: datetime) -> bool:
        """Whether the day is due, and there is no hold on it."""
        return self.is_due(now) and not self.held


def next_drop(
    days: Collection[date], examined: Collection[ExaminedDay], policy: RetentionPolicy, not_before: datetime
) -> datetime | None:
    """When the next of these days is dropped. None means never.

    Days that were not examined have the general retention.
    """
    others = set(days) - {examined_day.day for examined_day in examined}
    first = due_at(min(others), [policy.days], not_before) if others else None
    due_times = [examined_day.due_at for examined_day in examined if not examined_day.held]
    return min((due for due in (*due_times, first) if due is not None), default=None)


def stored_before(days: int, not_before: datetime, now: datetime) -> datetime | None:
    """Events without a partition are due if they were stored before this time; None if none is due."""
    return None if not days or now < not_before else now - timedelta(days=days)


def days_ahead(days: Collection[date], today: date) -> int:
    """How many days after today have a partition, without a gap."""
    count = 0
    while today + timedelta(days=count + 1) in days:
        count += 1
    return count


def _end_of_day(day: date) -> datetime:
    return datetime.combine(day, time(), UTC) + timedelta(days=1)
