"""Sends commands, and waits until they have taken effect or were refused."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceUnavailableError, refused_command_error
from sandherd.client.events import decoder
from sandherd.client.events.follower import EventFollower
from sandherd.client.events.sequencer import Event
from sandherd.client.events.target import (
    REFUSALS,
    SANDBOX_ENDS,
    SANDBOX_REFUSED,
    SPAWNER_SOURCE,
    Target,
    entity_subjects,
)
from sandherd.contracts.commands import Command, CreateSandbox, ExtendSandbox, RetryTask, SandboxCommand
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.sandbox import SandboxRunning
from sandherd.contracts.requests import ListEvents, SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDED, SANDBOX_ENDING, TASK_ENDED, SandboxState

POLL_SECONDS: Final = 1.0
"""The interval between requests for the target's state."""
_CLOCK_DIFFERENCE: Final = timedelta(seconds=5)
"""Maximum difference between the clocks of this machine and of the spawner."""

ViewT = TypeVar("ViewT", SandboxView, TaskView)


async def send_and_wait(
    connection: Connection, command: SandboxCommand, is_wanted: Callable[[SandboxView], bool], timeout: float
) -> SandboxView:
    """Send a command about an existing sandbox, and wait until `is_wanted` is true for the sandbox's view. Returns it.

    Raises `HerdError`: the spawner's refusal, `conflict` if the sandbox ends, or `unavailable` after `timeout` seconds,
    when the command may still take effect.
    """

    def reached(view: SandboxView) -> bool:
        if not is_wanted(view) and view.state in SANDBOX_ENDING:
            raise HerdError.of(Code.CONFLICT, f"{view.sandbox} is {view.state}", field="sandbox")
        return is_wanted(view)

    command_target = _CommandTarget(
        command.sandbox, lambda: queries.sandbox(connection.request, command.sandbox), reached
    )
    return await _CommandOutcome(connection, command, command_target).run(timeout)


async def extend_and_wait(
    connection: Connection, command: ExtendSandbox, before: SandboxView, timeout: float
) -> SandboxView:
    """Extend a sandbox, and wait until its record has the new expiry. `before` is its view before the command."""
    new_expiry = datetime.now(UTC) + timedelta(seconds=command.seconds)

    def is_wanted(view: SandboxView) -> bool:
        if view.expires_at is None or view.state in SANDBOX_ENDING:
            return False
        # Clocks differ, and a sandbox with a later expiry is not changed.
        is_extended = before.expires_at is None or view.expires_at > before.expires_at
        return is_extended or view.expires_at >= new_expiry - _CLOCK_DIFFERENCE

    return await send_and_wait(connection, command, is_wanted, timeout)


async def retry_and_wait(connection: Connection, command: RetryTask, before: TaskView, timeout: float) -> TaskView:
    """Retry a task, and wait until the retry is accepted. `before` is its view before the command."""

    def is_wanted(view: TaskView) -> bool:
        return view.state not in TASK_ENDED or view.attempt > before.attempt

    if before.state not in TASK_ENDED:
        raise HerdError.of(
            Code.CONFLICT,
            f"{before.task} is {before.state}: only a failed or cancelled task can be retried",
            field="task",
            remedy=f"see `sandherd tasks get {before.task}`",
        )
    command_target = _CommandTarget(command.task, lambda: queries.task(connection.request, command.task), is_wanted)
    return await _CommandOutcome(connection, command, command_target).run(timeout)


_UNKNOWN_STATE_CODES: Final = frozenset({Code.NOT_FOUND, Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL})
"""The codes of errors after which a target may exist: a command may still create it, or its service is unavailable."""


async def is_in_use(view: Awaitable[TaskView]) -> bool:
    """Whether a task exists, whose events would be confused with those of a new task. `view` requests it."""
    return await _view_or_none(view) is not None


async def refuse_ended(view: Awaitable[ViewT], action: str) -> None:
    """Raise `HerdError` (`conflict`) if the target of a command has ended. `action` is, for example, `cancelled`.

    An unknown target is not refused, because a command that is not handled yet may create it.
    """
    if (current := await _view_or_none(view)) is None:
        return
    kind, name = ("task", current.task) if isinstance(current, TaskView) else ("sandbox", current.sandbox)
    if current.state in TASK_ENDED or current.state in SANDBOX_ENDED:
        raise HerdError.of(
            Code.CONFLICT,
            f"{name} is {current.state}: a {kind} that has ended can't be {action}",
            field=kind,
            remedy=f"see `sandherd {'tasks' if kind == 'task' else 'sandboxes'} get {name}`",
        )


async def _view_or_none(view: Awaitable[ViewT]) -> ViewT | None:
    """The view of a target. None if the target is unknown, or its services are unavailable."""
    try:
        return await view
    except HerdError as error:
        if error.problem.code in _UNKNOWN_STATE_CODES:
            return None
        raise


@dataclass(frozen=True)
class _CommandTarget(Generic[ViewT]):
    """The target of a command: its name, and functions that request its view and check for the wanted state."""

    name: str
    get_view: Callable[[], Awaitable[ViewT]]
    is_wanted: Callable[[ViewT], bool]


class _CommandOutcome(Generic[ViewT]):
    """Waits for the outcome of one command: requests its target after each live event, and at regular intervals."""

    def __init__(self, connection: Connection, command: Command, command_target: _CommandTarget[ViewT]) -> None:
        self._connection = connection
        self._command = command
        self._target: _CommandTarget[ViewT] = command_target
        self._refusals: list[Event] = []
        self._changed = asyncio.Event()

    async def run(self, timeout: float) -> ViewT:
        """Send the command, and wait until the target has the wanted state. Raises `HerdError`."""
        subject = entity_subjects(self._connection.project, self._target.name)
        subscription = await self._connection.listen(subject, self._receive)
        try:
            await self._connection.flush()
            envelope = await self._connection.command(self._command, self._target.name)
            return await self._wait(envelope, timeout)
        finally:
            await subscription.unsubscribe()

    async def _receive(self, subject: str, document: bytes) -> None:
        event = decoder.from_live(subject, document)
        if event is None or not event.type.startswith(("sandbox.", "task.")):
            return
        if event.type in REFUSALS:
            self._refusals.append(event)
        self._changed.set()

    async def _wait(self, envelope: Envelope[Any], timeout: float) -> ViewT:
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            self._changed.clear()
            view = await self._current_view(envelope)
            if view is not None and self._target.is_wanted(view):
                return view
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise _timeout_error(self._target.name, f"not done within {timeout:g} s; the command was sent")
            await self._wait_for_event(min(remaining, POLL_SECONDS))

    async def _wait_for_event(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _current_view(self, envelope: Envelope[Any]) -> ViewT | None:
        """The current view; None if the services are unavailable. Raises `HerdError` if the command was refused."""
        for event in [*self._refusals, *await self._stored_refusals(envelope)]:
            if self._refuses(event, envelope):
                raise refused_command_error(event, envelope.type)
        try:
            return await self._target.get_view()
        except ServiceUnavailableError:
            return None

    def _refuses(self, event: Event, envelope: Envelope[Any]) -> bool:
        """Whether the event refuses this command: either at once, or later because the runtime failed to execute it."""
        record = SPAWNER_SOURCE + self._target.name
        failed_later = event.source == record and getattr(event.data, "command", None) == envelope.type
        names_command = getattr(event.data, "command_id", None) == str(envelope.id)
        return failed_later or names_command or event.source == f"{record}/{envelope.id.hex}"

    async def _stored_refusals(self, envelope: Envelope[Any]) -> list[Event]:
        """The refusal in the history, which is needed if the live subscription has missed it."""
        source = f"{SPAWNER_SOURCE}{self._target.name}/{envelope.id.hex}"
        try:
            reply = await self._connection.request(ListEvents(source=source))
        except HerdError:
            return []
        return [decoder.from_history(stored) for stored in reply.events]


async def create_and_wait(connection: Connection, command: CreateSandbox, timeout: float) -> SandboxView:
    """Create a sandbox and wait until it runs. Raises `HerdError` if it was refused or could not be created."""
    last: Event | None = None
    target = Target(connection.project, command.sandbox, "sandbox")
    try:
        async with asyncio.timeout(timeout), EventFollower(connection, target, fresh=True) as events:
            await connection.command(command, command.sandbox)
            async for event in events:
                last = event
                if event.type == SandboxRunning.type:
                    return await _running_view(connection, command.sandbox)
    except TimeoutError:
        raise _timeout_error(command.sandbox, f"not running after {timeout:g} s") from None
    raise _creation_error(command.sandbox, last)


async def _running_view(connection: Connection, sandbox: str) -> SandboxView:
    """The view with the state `running`, whose event was received, even if the spawner's reply does not have it yet."""
    view = await queries.sandbox(connection.request, sandbox)
    is_outdated = view.state in {SandboxState.REQUESTED, SandboxState.SPAWNING}
    return view.model_copy(update={"state": SandboxState.RUNNING}) if is_outdated else view


def _creation_error(sandbox: str, last: Event | None) -> HerdError:
    if last is not None and last.type == SANDBOX_REFUSED:
        return refused_command_error(last, CreateSandbox.type)
    ended = last is not None and last.type in SANDBOX_ENDS
    why = (getattr(last.data, "error", None) or getattr(last.data, "reason", "")) if last is not None and ended else ""
    return HerdError.of(
        Code.UNAVAILABLE,
        f"{sandbox} ended before it ran" + (f": {why}" if why else ""),
        remedy=f"see `sandherd events {sandbox}`",
    )


def _timeout_error(name: str, problem: str) -> HerdError:
    return HerdError.of(
        Code.UNAVAILABLE, f"{name}: {problem}, and may still take effect", remedy=f"see `sandherd events {name}`"
    )
