"""Submits a task under a name that is in use. The spawner decides whether it is the same task, or refuses it."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, refused_task_error
from sandherd.client.events import decoder
from sandherd.client.events.target import SPAWNER_SOURCE, TASK_REFUSED, Event, entity_subjects
from sandherd.client.tasks.unread_commands import has_unread_commands
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import ListEvents

DECIDED_SECONDS: Final = 30.0
"""Maximum time to wait for the spawner's decision."""
_CHECK_SECONDS: Final = 0.5
_REQUIRED_CHECKS: Final = 2
"""The number of consecutive checks that must find no unread command. The spawner publishes a refusal before it
acknowledges the command, so a refusal has been received by then."""


class Resubmission:
    """Receives the refusal of a task that is submitted within the context.

    The spawner publishes no event if the same task is submitted again. So if it has read all commands and has not
    refused this one, it is the same task.
    """

    def __init__(self, connection: Connection, task: str) -> None:
        self._connection = connection
        self._task = task
        self._command: Envelope[Any] | None = None
        self._refusals: list[Event] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        subject = entity_subjects(self._connection.project, self._task)
        self._subscription = await self._connection.listen(subject, self._receive)
        await self._connection.flush()
        self._unsubscribe = self._connection.on_command(self._note_command)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()
        await self._subscription.unsubscribe()

    async def check_same(self, remedy: str) -> None:
        """Wait for the spawner's decision. Raises `HerdError`; its code is `conflict` if another task has the name."""
        clock, checks_without_unread = asyncio.get_running_loop().time, 0
        deadline = clock() + DECIDED_SECONDS
        while True:
            self._changed.clear()
            for event in [*self._refusals, *await self._stored_refusal()]:
                self._raise_if_refused(event, remedy)
            if checks_without_unread == _REQUIRED_CHECKS:
                return
            if clock() > deadline:
                raise _undecided_error(self._task)
            checks_without_unread = (
                checks_without_unread + 1 if await has_unread_commands(self._connection.request) is False else 0
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._changed.wait()

    def _note_command(self, command: Envelope[Any]) -> None:
        if command.subject == self._task:
            self._command = command

    async def _receive(self, subject: str, document: bytes) -> None:
        event = decoder.from_live(subject, document)
        if event is not None and event.type in TASK_REFUSED:
            self._refusals.append(event)
            self._changed.set()

    async def _stored_refusal(self) -> list[Event]:
        """The refusal in the history, which is needed if the live subscription has missed it."""
        if self._command is None:
            return []
        try:
            source = f"{SPAWNER_SOURCE}{self._task}/{self._command.id.hex}"
            reply = await self._connection.request(ListEvents(source=source, types=sorted(TASK_REFUSED)))
        except HerdError:
            return []
        return [decoder.from_history(stored) for stored in reply.events]

    def _raise_if_refused(self, event: Event, remedy: str) -> None:
        if self._command is None or event.data.command_id != str(self._command.id):
            return
        if event.data.code != Code.CONFLICT:
            raise refused_task_error(event)
        raise HerdError.of(Code.CONFLICT, event.data.reason, field="task", remedy=remedy)


def _undecided_error(task: str) -> HerdError:
    return HerdError.of(
        Code.UNAVAILABLE,
        f"there is a task {task}; the spawner did not decide within {DECIDED_SECONDS:g} s whether it is the same task",
        remedy=f"see `sandherd events {task}`",
    )
