"""Notices for users: failures that the herd has handled by itself, and failures that it could not handle. Pure.

A notice is derived from one stored event and is pending until it is published. The notification that publishes it
removes it, even when a restarted monitor reads the events again; so no notice is published twice.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from monitor.facts import ObservedEvent
from sandherd.contracts.events.monitor import MonitorInterventionOutcome, MonitorNotificationPublished
from sandherd.contracts.events.task import TaskRetryScheduled
from sandherd.contracts.states import NotificationKind

MAX_AGE: Final = timedelta(hours=1)
"""Maximum age of events that cause a notice: after a long outage of the monitor, users already know of older events."""
MAX_PENDING: Final = 1000
"""Maximum number of notices that are pending."""
_FAILURE_TEXTS: Final = {
    "ignored": "the agent continued what an intervention was to stop",
    "undelivered": "an intervention could not be delivered to the agent, or the sandbox could not be paused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notification that is to be published.

    `cause` and `cause_type` are the id and the type of the event that causes it.
    """

    cause: UUID
    cause_type: str
    kind: NotificationKind
    project: str
    sandbox: str
    task: str | None
    at: datetime
    message: str

    def event(self) -> MonitorNotificationPublished:
        """The event that publishes it."""
        return MonitorNotificationPublished(
            kind=self.kind, message=self.message, cause_id=self.cause, cause_type=self.cause_type
        )


def fold(pending: dict[UUID, Notice], event: ObservedEvent) -> None:
    """Add the notice that an event causes, or remove the notice that it publishes.

    Beyond `MAX_PENDING` the oldest notice is dropped.
    """
    if isinstance(event.data, MonitorNotificationPublished):
        pending.pop(event.data.cause_id, None)
    elif (notice := notice_of(event)) is not None:
        pending[notice.cause] = notice
        while len(pending) > MAX_PENDING:
            del pending[next(iter(pending))]


def notice_of(event: ObservedEvent) -> Notice | None:
    """The notice of an event; None if the event causes none."""
    kind_and_message = _kind_and_message(event)
    if kind_and_message is None or event.id is None:
        return None
    kind, message = kind_and_message
    return Notice(
        cause=event.id,
        cause_type=event.type,
        kind=kind,
        project=event.project,
        sandbox=event.entity,
        task=event.taskid,
        at=event.at,
        message=message,
    )


def due_notices(
    pending: Collection[Notice], notification_kinds: Collection[NotificationKind], now: datetime
) -> list[Notice]:
    """The notices to publish, oldest first; the others of `pending` can be dropped."""
    return [notice for notice in pending if notice.kind in notification_kinds and now - notice.at <= MAX_AGE]


def _kind_and_message(event: ObservedEvent) -> tuple[NotificationKind, str] | None:
    data = event.data
    if isinstance(data, TaskRetryScheduled) and data.requested_by is None:
        reason = f"{data.error_type}: {data.error}" if data.error_type else data.error
        return NotificationKind.RECOVERY, f"attempt {data.attempt} failed and is retried: {reason}"
    if isinstance(data, MonitorInterventionOutcome) and data.outcome in _FAILURE_TEXTS:
        return NotificationKind.INTERVENTION_FAILED, _FAILURE_TEXTS[data.outcome]
    return None
