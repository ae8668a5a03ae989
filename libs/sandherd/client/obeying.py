"""Commands about sandboxes, and waiting for what comes of them: that it is so, or why it was refused."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandherd.client import heard, questions
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceAwayError, refused_of_sandbox
from sandherd.client.following import Following
from sandherd.client.sequencing import Event
from sandherd.client.target import SANDBOX_ENDS, SANDBOX_REFUSED, SPAWNER_SOURCE, Target, entity_subjects
from sandherd.contracts.commands import CreateSandbox, ExtendSandbox, SandboxCommand
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import AskEvents, SandboxView
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState

LOOK_SECONDS: Final = 1.0
_CLOCKS: Final = timedelta(seconds=5)
RUNNING: Final = "sandbox.running"

IsSo = Callable[[SandboxView], bool]


async def obeyed(connection: Connection, command: SandboxCommand, is_so: IsSo, timeout: float) -> SandboxView:
    """Give a command about a sandbox that there is, and wait until it is so. Returns the sandbox as it stands then.

    Raises `HerdError`: the spawner's refusal, or `unavailable` after `timeout` seconds, when the command still stands.
    """
    listening = _Outcome(connection, command)
    subscription = await connection.listen(entity_subjects(connection.project, command.sandbox), listening.hear)
    try:
        await connection.settle()
        said = await connection.command(command, command.sandbox)
        return await listening.wait(said, is_so, timeout)
    finally:
        await subscription.unsubscribe()


async def extended(connection: Connection, command: ExtendSandbox, before: SandboxView, timeout: float) -> SandboxView:
    """Let a sandbox live longer, and wait until it is written down. `before` is how it stood."""
    wanted = datetime.now(UTC) + timedelta(seconds=command.seconds)

    def is_so(view: SandboxView) -> bool:
        if view.expires_at is None:
            return False
        # Clocks differ, and one that may live longer anyway is left as it is.
        moved = before.expires_at is None or view.expires_at > before.expires_at
        return moved or view.expires_at >= wanted - _CLOCKS

    return await obeyed(connection, command, is_so, timeout)


class _Outcome:
    """What came of one command: heard live, and looked for where it was not heard."""

    def __init__(self, connection: Connection, command: SandboxCommand) -> None:
        self._connection = connection
        self._command = command
        self._refusals: list[Event] = []
        self._news = asyncio.Event()

    async def hear(self, subject: str, document: bytes) -> None:
        event = heard.live(subject, document)
        if event is None or not event.type.startswith("sandbox."):
            return
        if event.type == SANDBOX_REFUSED:
            self._refusals.append(event)
        self._news.set()

    async def wait(self, said: Envelope[Any], is_so: IsSo, timeout: float) -> SandboxView:
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            self._news.clear()
            view = await self._look(said)
            if view is not None and is_so(view):
                return view
            if view is not None and view.state in SANDBOX_ENDING:
                raise HerdError.of(Code.CONFLICT, f"{view.sandbox} is {view.state}", field="sandbox")
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise self._too_late(timeout)
            await self._rest(min(left, LOOK_SECONDS))

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _look(self, said: Envelope[Any]) -> SandboxView | None:
        """The sandbox now; None if nobody can tell. Raises `HerdError` if the command was refused."""
        for event in [*self._refusals, *await self._kept(said)]:
            if event.data.command == said.type and event.source in self._sources(said):
                raise refused_of_sandbox(event)
        try:
            return await questions.sandbox(self._connection.ask, self._command.sandbox)
        except ServiceAwayError:
            return None

    async def _kept(self, said: Envelope[Any]) -> list[Event]:
        """The refusal, if the history has it and the live subscription lost it."""
        try:
            found = await self._connection.ask(AskEvents(source=self._sources(said)[0]))
        except HerdError:
            return []
        return [heard.kept(stored) for stored in found.events]

    def _sources(self, said: Envelope[Any]) -> tuple[str, str]:
        """Who refuses it: the spawner at once, or the sandbox's record when its runtime would not."""
        record = SPAWNER_SOURCE + self._command.sandbox
        return f"{record}/{said.id.hex}", record

    def _too_late(self, timeout: float) -> HerdError:
        name = self._command.sandbox
        return HerdError.of(
            Code.UNAVAILABLE,
            f"{name}: not done within {timeout:g} s; it was asked for, and may still be done",
            remedy=f"look with `sandherd sandboxes get {name}`",
        )


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
        raise HerdError.of(
            Code.UNAVAILABLE,
            f"{command.sandbox} does not run after {timeout:g} s; it may still come",
            remedy=f"look with `sandherd sandboxes get {command.sandbox}`",
        ) from None
    raise _not_made(command.sandbox, last)


async def _as_running(connection: Connection, sandbox: str) -> SandboxView:
    """The record says so before the event does; a list that is a moment behind must not deny it."""
    view = await questions.sandbox(connection.ask, sandbox)
    early = view.state in {SandboxState.REQUESTED, SandboxState.SPAWNING}
    return view.model_copy(update={"state": SandboxState.RUNNING}) if early else view


def _not_made(sandbox: str, last: Event | None) -> HerdError:
    if last is not None and last.type == SANDBOX_REFUSED:
        return refused_of_sandbox(last)
    ended = last is not None and last.type in SANDBOX_ENDS
    why = (getattr(last.data, "error", None) or getattr(last.data, "reason", "")) if last is not None and ended else ""
    return HerdError.of(
        Code.UNAVAILABLE,
        f"{sandbox} ended before it ran" + (f": {why}" if why else ""),
        remedy=f"look with `sandherd events {sandbox}`",
    )
