"""Publishes an event for each command that becomes a dead letter, so that its sender is informed.

The event has the command's sequence number in the stream in addition to its `id`, because an invalid command may have
no readable `id`.
"""

import json
import re
import time
from typing import Any, Final
from uuid import UUID

from sandherd.bus.connection import Bus, StreamFullError
from sandherd.bus.consumers.dead_letters import WINDOW_SECONDS
from sandherd.bus.consumers.outcomes import Dead, Delivery, Handler, Outcome, Retry, outcome_of
from sandherd.contracts.commands import COMMANDS, SandboxCommand
from sandherd.contracts.envelope import TRACEPARENT_PATTERN, Envelope, wrap
from sandherd.contracts.errors import Problem
from sandherd.contracts.events.base import CommandRefusal
from sandherd.contracts.events.message import MessageRefused
from sandherd.contracts.events.monitor import MonitorRefused
from sandherd.contracts.events.sandbox import SandboxRefused
from sandherd.contracts.events.task import TaskRefused
from sandherd.contracts.headers import MESSAGE_ID
from sandherd.contracts.names import FLEET, SAFE_NAME_PATTERN, DerivedIds
from sandherd.contracts.principals import Principal
from sandherd.contracts.subjects import command_of

UNKNOWN: Final = "unknown"
"""The entity of a refusal whose command names neither a task nor a sandbox."""
_MAX_REASON_LENGTH: Final = 1000
_EVENTS_FULL: Final = Retry(5.0, "EVENTS is full, and the refusal of a command can't be published")
_SAFE_NAME: Final = re.compile(SAFE_NAME_PATTERN)
_TRACEPARENT: Final = re.compile(TRACEPARENT_PATTERN)


class RefusedCommands:
    """Publishes the refusals of commands to one service, at most `limit` of each project in a window.

    Further refusals are not published, so that a client's invalid commands can't fill EVENTS.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._windows: dict[str, tuple[float, int]] = {}
        """For each project: the monotonic second at which its window began, and the number of refusals since then."""

    async def handle(self, bus: Bus, handle: Handler, delivery: Delivery) -> Outcome:
        """Handle a command. If it becomes a dead letter, publish its refusal before the outcome is returned.

        Raises what `handle` or the publishing raises. While EVENTS is full, the outcome is a retry, so that the command
        does not delay commands of other projects.
        """
        try:
            outcome = await handle(delivery)
        except Exception as error:  # raised again, unless EVENTS is full; then the command is retried
            if not await self._publish_refusal(bus, delivery, outcome_of(error, delivery.deliveries)):
                return _EVENTS_FULL
            raise
        return outcome if await self._publish_refusal(bus, delivery, outcome) else _EVENTS_FULL

    async def _publish_refusal(self, bus: Bus, delivery: Delivery, outcome: Outcome) -> bool:
        """Publish the refusal of a dead letter, within the limit. Returns False only if EVENTS is full."""
        event = refusal_of(bus.ids, delivery, outcome.problem) if isinstance(outcome, Dead) else None
        if event is None or not self.allows(event.project, time.monotonic()):
            return True
        try:
            await bus.publish_event(event, while_full=False)
        except StreamFullError:
            return False
        return True

    def allows(self, project: str, now: float) -> bool:
        """Count a refusal of the project, and return whether it is within the limit. `now` never decreases."""
        since, count = self._windows.get(project, (now, 0))
        if now - since >= WINDOW_SECONDS:
            self._windows = {name: window for name, window in self._windows.items() if now - window[0] < WINDOW_SECONDS}
            since, count = now, 0
        self._windows[project] = since, count + 1
        return count < self._limit


def refusal_of(ids: DerivedIds, delivery: Delivery, problem: Problem) -> Envelope[Any] | None:
    """The event that reports a refused command; None if the command's subject names no single project.

    All deliveries of a command have the same event.
    """
    command = command_of(delivery.subject)
    if command is None or command[1] == FLEET or not _SAFE_NAME.fullmatch(command[1]):
        return None
    command_type, project = command
    document = _read_object(delivery.data)
    task, sandbox = _name(document, "task"), _name(document, "sandbox")
    candidates = (task, sandbox) if _event_class(command_type) is TaskRefused else (sandbox, task)
    entity = next((name for name in candidates if name and name != FLEET), UNKNOWN)
    event_id = ids.derive(delivery.at, delivery.subject, delivery.stream_sequence)
    data = _event_class(command_type)(
        command=command_type,
        reason=_printable(problem.message),
        field=problem.field,
        code=problem.code,
        command_id=_id_of(document, delivery),
        command_sequence=delivery.stream_sequence,
    )
    return wrap(
        data,
        data.type,
        source=f"/sandherd/{command_type.partition('.')[0]}/{entity}/{event_id.hex}",
        sequence=1,
        project=project,
        subject=entity,
        time=delivery.at,
        id=event_id,
        taskid=task,
        sandboxid=sandbox,
        traceparent=_traceparent(document),
    )


def _event_class(command_type: str) -> type[CommandRefusal]:
    command = COMMANDS[command_type]
    if command.service == Principal.MESSAGE_RELAY:
        return MessageRefused
    if command.service == Principal.MONITOR:
        return MonitorRefused
    return SandboxRefused if issubclass(command, SandboxCommand) else TaskRefused


def _read_object(data: bytes) -> dict[str, Any]:
    """The JSON object in a command's payload; an empty object if the payload is not a JSON object."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _name(document: dict[str, Any], field: str) -> str | None:
    data = document.get("data")
    name = data.get(field) if isinstance(data, dict) else None
    return name if isinstance(name, str) and _SAFE_NAME.fullmatch(name) else None


def _id_of(document: dict[str, Any], delivery: Delivery) -> str | None:
    """The `id` of the command, or else its header `Nats-Msg-Id`; None if neither is a UUID."""
    for candidate in (document.get("id"), delivery.headers.get(MESSAGE_ID)):
        try:
            return str(UUID(candidate))
        except (ValueError, TypeError, AttributeError):
            continue
    return None


def _traceparent(document: dict[str, Any]) -> str | None:
    value = document.get("traceparent")
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def _printable(text: str) -> str:
    cleaned = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return cleaned[:_MAX_REASON_LENGTH]
