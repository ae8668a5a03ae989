"""The screen of a run: events as lines, and between them what the agent's terminal shows."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from sandherd.bus.together import end
from sandherd.client.cli.colours import Paint
from sandherd.client.cli.options import Format
from sandherd.client.cli.showing import show
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.sequencing import Event
from sandherd.client.terminal_text import put, put_output

LAST_OUTPUT_SECONDS: Final = 2.0
_MARGIN: Final = "  │ "


class Screen:
    """Shows events as they come, and the terminal output of every sandbox that they are about."""

    def __init__(self, herd: Herd, output: Format, paint: Paint) -> None:
        self._herd = herd
        self._output = output
        self._paint = paint
        self._terminals: dict[str, Terminal] = {}

    def show(self, event: Event, sandboxes: set[str]) -> None:
        """One event. As JSON there is nothing but events."""
        show(event, self._output, self._paint)
        if self._output is Format.TABLE:
            for sandbox in sandboxes - self._terminals.keys():
                self._terminals[sandbox] = Terminal(self._herd, sandbox, self._paint)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminal in self._terminals.values():
            await terminal.close(finish=kind is None)


class Terminal:
    """Prints the terminal output of one sandbox, line by line."""

    def __init__(self, herd: Herd, sandbox: str, paint: Paint) -> None:
        self._herd = herd
        self._sandbox = sandbox
        self._paint = paint
        self._line = ""
        self._shown = 0
        self._following = asyncio.create_task(self._follow(live=True))

    async def close(self, *, finish: bool) -> None:
        """Print no more; with `finish`, only after what is there already."""
        await end([self._following])
        if finish:
            with suppress(TimeoutError):  # all of it is in `sandherd logs`
                async with asyncio.timeout(LAST_OUTPUT_SECONDS):
                    await self._follow(live=False)
        if self._line:
            self._print(self._line)

    async def _follow(self, *, live: bool) -> None:
        """Output is an extra here: a run is shown without it, and `sandherd logs` says why there is none."""
        try:
            async for chunk in self._herd.output(self._sandbox, follow=live):
                if chunk.stream_sequence > self._shown:
                    self._shown = chunk.stream_sequence
                    self._add(chunk.text)
        except HerdError:
            return

    def _add(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._print(line)

    def _print(self, line: str) -> None:
        put(self._paint(_MARGIN, "dim"), end="")
        put_output(f"{line}\n", colours=self._paint.on)
