"""Shows a running task: its events and the terminal output of its agent, as lines in order of time."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from sandherd.cli.options import Format
from sandherd.cli.render.console import Paint
from sandherd.cli.render.history import show
from sandherd.cli.render.timed_display import TimedDisplay
from sandherd.client.errors import HerdError
from sandherd.client.events.follower import EventFollower
from sandherd.client.events.sequencer import Event
from sandherd.client.herd import Herd
from sandherd.client.tasks.progress import refuses_submission
from sandherd.client.terminal_text import write_output, write_text
from sandherd.concurrency import cancel_and_wait

LAST_OUTPUT_SECONDS: Final = 2.0
"""Maximum time for reading the rest of a sandbox's output after the last event of the task."""
_MARGIN: Final = "  │ "


class TaskScreen:
    """Shows the events of a task, and the terminal output of all its sandboxes."""

    def __init__(self, herd: Herd, output: Format, paint: Paint) -> None:
        self.last: Event | None = None
        """The event that was received last."""
        self._herd = herd
        self._output = output
        self._paint = paint
        self._display = TimedDisplay()
        self._terminals: dict[str, SandboxTerminal] = {}

    async def follow(self, follower: EventFollower, on_event: Callable[[Event], None]) -> None:
        """Show all events, and pass each to `on_event` at once. JSON omits terminal output; `-o name` shows nothing."""

        def receive(event: Event) -> None:
            on_event(event)
            self._receive(event, follower.sandboxes)

        await self._display.follow(follower, receive)

    def _receive(self, event: Event, sandboxes: set[str]) -> None:
        self.last = event
        if self._output is Format.NAME:
            return
        if refuses_submission(event.data) and not self._output.is_json:
            return  # the command reports the reason and the remedy as its error
        self._display.add(partial(show, event, self._output, self._paint), source=event.source, time=event.time)
        if not self._output.is_json:
            for sandbox in sandboxes - self._terminals.keys():
                self._terminals[sandbox] = SandboxTerminal(self._herd, sandbox, self._paint, self._display)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self._terminals.values():
            await terminal.close(finish=kind is None)
        self._display.__exit__(kind, error, trace)


class SandboxTerminal:
    """Shows the terminal output of one sandbox, line by line."""

    def __init__(self, herd: Herd, sandbox: str, paint: Paint, display: TimedDisplay) -> None:
        self._herd = herd
        self._sandbox = sandbox
        self._paint = paint
        self._display = display
        self._line = ""
        self._time: datetime
        self._last_sequence = 0
        self._follow_task = asyncio.create_task(self._follow(live=True))

    async def close(self, *, finish: bool) -> None:
        """Stop following. With `finish`, show the rest of the stored output."""
        await cancel_and_wait([self._follow_task])
        if finish:
            with suppress(TimeoutError):  # `sandherd logs` has the complete output
                async with asyncio.timeout(LAST_OUTPUT_SECONDS):
                    await self._follow(live=False)
        if self._line:
            self._show(self._line)

    async def _follow(self, *, live: bool) -> None:
        """Read output until its end. An error ends it without a message, because `sandherd logs` reports the error."""
        try:
            async for chunk in self._herd.output(self._sandbox, follow=live):
                if chunk.stream_sequence > self._last_sequence:  # `close` reads the stored output again
                    self._last_sequence, self._time = chunk.stream_sequence, chunk.time
                    self._add(chunk.text)
        except HerdError:
            return

    def _add(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._show(line)

    def _show(self, line: str) -> None:
        self._display.add(partial(self._print, line), source=f"output of {self._sandbox}", time=self._time)

    def _print(self, line: str) -> None:
        write_text(self._paint(_MARGIN, "dim"), end="")
        write_output(f"{line}\n", colours=self._paint.on)
