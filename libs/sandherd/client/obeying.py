"""Commands, and waiting for what comes of them: that it is so, or why it was refused."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from sandherd.client import heard, questions
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceAwayError, refused_of
from sandherd.client.following import Following
from sandherd.client.sequencing import Event
from sandherd.client.target import REFUSALS, SANDBOX_ENDS, SANDBOX_REFUSED, SPAWNER_SOURCE, Target, entity_subjects
from sandherd.contracts.commands import Command, CreateSandbox, ExtendSandbox, RetryTask, SandboxCommand
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import AskEvents, SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDING, TASK_ENDED, SandboxState

LOOK_SECONDS: Final = 1.0
_CLOCKS: Final = timedelta(seconds=5)
RUNNING: Final = "sandbox.running"

ViewT = TypeVar("ViewT", SandboxView, TaskView)


async def obeyed(
    connection: Connection, command: SandboxCommand, is_so: Callable[[SandboxView], bool], timeout: float
) -> SandboxView:
    """Give a command about a sandbox that there is, and wait until it is so. Returns the sandbox as it stands then.

    Raises `HerdError`: the spawner's refusal, or `unavailable` after `timeout` seconds, when the command still stands.
    """

    def judged(view: SandboxView) -> bool:
        if not is_so(view) and view.state in SANDBOX_ENDING:
            raise HerdError.of(Code.CONFLICT, f"{view.sandbox} is {view.state}", field="sandbox")
        return is_so(view)

    about = _About(command.sandbox, lambda: questions.sandbox(connection.ask, command.sandbox), judged)
    return await _Outcome(connection, command, about).await_it(timeout)


async def extended(connection: Connection, command: ExtendSandbox, before: SandboxView, timeout: float) -> SandboxView:
    """Let a sandbox live longer, and wait until it is written down. `before` is how it stood."""
    wanted = datetime.now(UTC) + timedelta(seconds=command.seconds)

    def is_so(view: SandboxView) -> bool:
        if view.expires_at is None or view.state in SANDBOX_ENDING:
            return False
        # Clocks differ, and one that may live longer anyway is left as it is.
        moved = before.expires_at is None or view.expires_at > before.expires_at
        return moved or view.expires_at >= wanted - _CLOCKS

    return await obeyed(connection, command, is_so, timeout)


async def retried(connection: Connection, command: RetryTask, before: TaskView, timeout: float) -> TaskView:
    """Have a task tried once more, and wait until it is settled. `before` is how it stood."""

    def is_so(view: TaskView) -> bool:
        return view.state not in TASK_ENDED or view.attempt > before.attempt

    if before.state not in TASK_ENDED:
        raise HerdError.of(
            Code.CONFLICT,
            f"{before.task} is {before.state}: only a task that has failed or was cancelled is tried once more",
            field="task",
            remedy=f"look with `sandherd tasks get {before.task}`",
        )
    about = _About(command.task, lambda: questions.task(connection.ask, command.task), is_so)
    return await _Outcome(connection, command, about).await_it(timeout)


@dataclass(frozen=True)
class _About(Generic[ViewT]):
    """What a command is about: its name, how it is looked at, and whether it is as it was wanted."""

    name: str
    look: Callable[[], Awaitable[ViewT]]
    is_so: Callable[[ViewT], bool]


class _Outcome(Generic[ViewT]):
    """What came of one command: heard live, and looked for where it was not heard."""

    def __init__(self, connection: Connection, command: Command, about: _About[ViewT]) -> None:
        self._connection = connection
        self._command = command
        self._about: _About[ViewT] = about
        self._refusals: list[Event] = []
        self._news = asyncio.Event()

    async def await_it(self, timeout: float) -> ViewT:
        """Give the command, and wait."""
        subject = entity_subjects(self._connection.project, self._about.name)
        subscription = await self._connection.listen(subject, self._hear)
        try:
            await self._connection.settle()
            said = await self._connection.command(self._command, self._about.name)
            return await self._wait(said, timeout)
        finally:
            await subscription.unsubscribe()

    async def _hear(self, subject: str, document: bytes) -> None:
        event = heard.live(subject, document)
        if event is None or not event.type.startswith(("sandbox.", "task.")):
            return
        if event.type in REFUSALS:
            self._refusals.append(event)
        self._news.set()

    async def _wait(self, said: Envelope[Any], timeout: float) -> ViewT:
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            self._news.clear()
            view = await self._look(said)
            if view is not None and self._about.is_so(view):
                return view
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise _too_late(self._about.name, f"not done within {timeout:g} s; it was asked for")
            await self._rest(min(left, LOOK_SECONDS))

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _look(self, said: Envelope[Any]) -> ViewT | None:
        """How it stands now; None if nobody can tell. Raises `HerdError` if the command was refused."""
        for event in [*self._refusals, *await self._kept(said)]:
            if self._refuses(event, said):
                raise refused_of(event, said.type)
        try:
            return await self._about.look()
        except ServiceAwayError:
            return None

    def _refuses(self, event: Event, said: Envelope[Any]) -> bool:
        """Whether it refuses this command: said by the spawner at once, or by the record when its runtime would not."""
        record = SPAWNER_SOURCE + self._about.name
        later = event.source == record and getattr(event.data, "command", None) == said.type
        return later or event.source == f"{record}/{said.id.hex}"

    async def _kept(self, said: Envelope[Any]) -> list[Event]:
        """The refusal, if the history has it and the live subscription lost it."""
        source = f"{SPAWNER_SOURCE}{self._about.name}/{said.id.hex}"
        try:
            found = await self._connection.ask(AskEvents(source=source))
        except HerdError:
            return []
        return [heard.kept(stored) for stored in found.events]


async def created(connection: Connection, command: CreateSandbox, timeout: float) -> SandboxView:
    """Make a sandbox and wait until it runs. Raises `HerdError`: a refusal, or that it could not be made."""
    last: Event | None = None
    target = Target(connection.project, command.sandbox, "sandbox")
    try:
        async with asyncio.timeout(timeout), Following(connection, target, fresh=True) as events:
            await connection.command(command, command.sandbox)
            async for event in events:
                last = event
                if event.type == RUNNING:
                    return await _as_running(connection, command.sandbox)
    except TimeoutError:
        raise _too_late(command.sandbox, f"it does not run after {timeout:g} s") from None
    raise _not_made(command.sandbox, last)


async def _as_running(connection: Connection, sandbox: str) -> SandboxView:
    """The record says so before the event does; a list that is a moment behind must not deny it."""
    view = await questions.sandbox(connection.ask, sandbox)
    early = view.state in {SandboxState.REQUESTED, SandboxState.SPAWNING}
    return view.model_copy(update={"state": SandboxState.RUNNING}) if early else view


def _not_made(sandbox: str, last: Event | None) -> HerdError:
    if last is not None and last.type == SANDBOX_REFUSED:
        return refused_of(last, CreateSandbox.type)
    ended = last is not None and last.type in SANDBOX_ENDS
    why = (getattr(last.data, "error", None) or getattr(last.data, "reason", "")) if last is not None and ended else ""
    return HerdError.of(
        Code.UNAVAILABLE,
        f"{sandbox} ended before it ran" + (f": {why}" if why else ""),
        remedy=f"look with `sandherd events {sandbox}`",
    )


def _too_late(name: str, what: str) -> HerdError:
    return HerdError.of(
        Code.UNAVAILABLE, f"{name}: {what}, and may still come", remedy=f"look with `sandherd events {name}`"
    )
