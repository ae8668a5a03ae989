"""Notices for users: one for each event that is worth one, until it is published."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from monitor import notices
from monitor.facts import ObservedEvent
from monitor.herd import Herd
from monitor.notices import MAX_AGE, MAX_PENDING, Notice
from monitor.snapshot import pack, unpack
from sandherd.contracts.events.monitor import MonitorInterventionOutcome, MonitorNotificationPublished
from sandherd.contracts.events.task import TaskRetryScheduled
from sandherd.contracts.names import derived_uuid
from sandherd.contracts.states import NotificationKind
from tests.unit.monitor.conftest import T0

KINDS = frozenset(NotificationKind)


def identifier(number: int) -> UUID:
    return derived_uuid(T0, "event", str(number))


def retry(number: int, **more: Any) -> ObservedEvent:
    """An attempt with a sandbox failed, and another one follows."""
    data = TaskRetryScheduled(attempt=1, not_before=T0, error="signal 9", error_type="worker_lost", **more)
    return ObservedEvent("p1", "sbx-1", data.type, number, T0, data, identifier(number), "task-1")


def outcome(number: int, value: Any) -> ObservedEvent:
    data = MonitorInterventionOutcome(correlation_id="c", outcome=value)
    return ObservedEvent("p1", "sbx-1", data.type, number, T0, data, identifier(number), "task-1")


def published(notice: Notice, number: int) -> ObservedEvent:
    """The event of a notification, as the monitor reads it."""
    data = notice.event()
    return ObservedEvent("p1", "sbx-1", data.type, number, T0, data, identifier(number), "task-1")


def test_automatic_retry_is_a_recovery() -> None:
    """It names the attempt and the reason; a retry that a user requested notifies no one."""
    found = notices.notice_of(retry(1))
    assert found is not None
    assert (found.kind, found.project, found.sandbox, found.task) == ("recovery", "p1", "sbx-1", "task-1")
    assert found.message == "attempt 1 failed and is retried: worker_lost: signal 9"
    event = found.event()
    assert (event.cause_id, event.cause_type) == (identifier(1), "task.retry_scheduled")
    assert notices.notice_of(retry(2, requested_by="alice")) is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("ignored", "intervention_failed"),
        ("undelivered", "intervention_failed"),
        ("obeyed", None),
        ("finished", None),
    ],
)
def test_intervention_without_effect_is_notified(value: str, kind: str | None) -> None:
    """A nudge that helped, or came too late to matter, is not."""
    found = notices.notice_of(outcome(1, value))
    assert (found.kind if found else None) == kind


def test_notice_is_pending_until_its_event_is_read() -> None:
    """Read again after a restart it is pending again, and the stored notification removes it."""
    herd = Herd()
    cause = retry(1)
    herd.fold(cause)
    herd.fold(cause)
    (notice,) = herd.notices.values()
    restored = unpack(*pack(herd, "a"))
    assert restored.notices == herd.notices
    restored.fold(published(notice, 2))
    assert restored.notices == {}
    assert MonitorNotificationPublished.type == published(notice, 2).type


def test_notice_of_an_ended_sandbox_is_pending() -> None:
    """The retry of a task is often published after the end of its sandbox."""
    herd = Herd(ended_keys=[("p1", "sbx-1")])
    herd.fold(retry(1))
    assert len(herd.notices) == 1


def test_only_wanted_and_recent_notices_are_due() -> None:
    """In the order of their events."""
    pending: dict[UUID, Notice] = {}
    for event in (retry(1), outcome(2, "ignored"), retry(3)):
        notices.fold(pending, event)
    both = notices.due_notices(pending.values(), KINDS, T0 + MAX_AGE)
    assert [notice.cause for notice in both] == [identifier(1), identifier(2), identifier(3)]
    one = notices.due_notices(pending.values(), {NotificationKind.INTERVENTION_FAILED}, T0)
    assert [notice.cause for notice in one] == [identifier(2)]
    assert notices.due_notices(pending.values(), (), T0) == []
    assert notices.due_notices(pending.values(), KINDS, T0 + MAX_AGE + timedelta(seconds=1)) == []


def test_pending_notices_are_limited() -> None:
    """The oldest are dropped."""
    pending: dict[UUID, Notice] = {}
    for number in range(MAX_PENDING + 3):
        notices.fold(pending, retry(number))
    assert len(pending) == MAX_PENDING
    assert next(iter(pending)) == identifier(3)
