"""A command in a sandbox, on this terminal: its output where ours goes, its exit status ours."""

import asyncio
import codecs
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from sandherd.client.cli import printing
from sandherd.client.cli.colours import Paint
from sandherd.client.cli.durations import seconds
from sandherd.client.cli.leaving import complain
from sandherd.client.cli.options import Format
from sandherd.client.cli.spec import variables
from sandherd.client.cli.talking import Work
from sandherd.client.errors import HerdError, checked_name
from sandherd.client.executing import Execution, command, exit_status
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import may_put_exactly, put, put_exactly, put_output
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import INLINE_BYTES, ExecOutput, ExecState

_ENDED: Final = {
    "timed_out": "its time was over",
    "killed": "it was killed",
    "failed": "it could not be started",
}


def run(sandbox: str, argv: Sequence[str], output: Format, *, env: Sequence[str], timeout: str, **more: Any) -> Work:
    """What runs a command. Raises `HerdError` for one that is wrong, before anything is connected."""
    given = {"cwd": more["cwd"], "env": variables(env, os.environ), "timeout": seconds(timeout, "--timeout")}
    command(sandbox, argv, **given)
    said = _standard_input() if more["stdin"] else None
    command(sandbox, argv, stdin=said, **given)

    async def work(herd: Herd) -> int:
        started = await herd.exec(sandbox, argv, stdin=said, **given)
        if more["detach"]:
            return _name_it(started, output)
        try:
            return await _to_the_end(started, output)
        except asyncio.CancelledError:
            await started.end()
            raise

    return work


def of_before(sandbox: str, output: Format, *, status: str | None, kill: str | None) -> Work:
    """What shows or ends a command that was started before."""
    name = checked_name(status or kill or "", "exec")

    async def work(herd: Herd) -> int:
        execution = herd.execution(sandbox, name)
        if kill is not None:
            return _show_state(await execution.kill(), output)
        pieces = [piece async for piece in execution.now()]
        assert execution.state is not None
        return _show_so_far(execution.state, pieces, output)

    return work


def _standard_input() -> bytes:
    """All that comes on standard input, if it is not too much."""
    found = sys.stdin.buffer.read(INLINE_BYTES + 1)
    if len(found) > INLINE_BYTES:
        raise HerdError.of(
            Code.TOO_LARGE,
            f"standard input has more than {INLINE_BYTES} bytes",
            field="stdin",
            remedy="copy it there with `sandherd cp`, and let the command read the file",
        )
    return found


def _name_it(started: Execution, output: Format) -> int:
    if output is Format.JSON:
        printing.document({"sandbox": started.sandbox, "exec": started.name})
    else:
        put(started.name)
    return 0


async def _to_the_end(started: Execution, output: Format) -> int:
    pieces: list[ExecOutput] = []
    writer = _Writer()
    async for piece in started.output():
        if output is Format.JSON:
            pieces.append(piece)
        else:
            writer.write(piece)
    assert started.state is not None
    if output is Format.JSON:
        printing.document(_document(started.state, pieces))
    else:
        _complain(started.state)
    return exit_status(started.state)


class _Writer:
    """Writes what a command wrote: to a pipe or a file exactly that; to a terminal without what would control it."""

    def __init__(self) -> None:
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": new("replace"), "stderr": new("replace")}
        self._colours = Paint.for_screen().on

    def write(self, piece: ExecOutput) -> None:
        """Write a piece, at once."""
        error = piece.stream == "stderr"
        if may_put_exactly(error=error):
            put_exactly(piece.data, error=error)
        else:
            text = self._decoders[piece.stream].decode(piece.data)
            put_output(text, colours=self._colours, error=error)


def _complain(state: ExecState) -> None:
    why = _ENDED.get(state.state)
    if why is not None:
        complain(f"{state.exec}: {why}" + (f": {state.error}" if state.error else ""))
    if state.dropped_bytes:
        complain(f"{state.exec}: {state.dropped_bytes} bytes of its output were not kept")


def _show_so_far(state: ExecState, pieces: Sequence[ExecOutput], output: Format) -> int:
    if output is Format.JSON:
        printing.document(_document(state, pieces))
        return 0
    writer = _Writer()
    for piece in pieces:
        writer.write(piece)
    complain(_stands(state))
    return 0


def _show_state(state: ExecState, output: Format) -> int:
    if output is Format.JSON:
        printing.document(_document(state, []))
    else:
        put(_stands(state))
    return 0


def _stands(state: ExecState) -> str:
    ended = "" if state.exit_code is None else f" with status {state.exit_code}"
    return f"{state.exec}: {state.state}{ended}"


def _document(state: ExecState, pieces: Sequence[ExecOutput]) -> dict[str, Any]:
    """A command as JSON has it; bytes that are no UTF-8 are replaced."""
    texts = {
        stream: b"".join(piece.data for piece in pieces if piece.stream == stream).decode(errors="replace")
        for stream in ("stdout", "stderr")
    }
    plain = state.model_dump(mode="json", exclude={"output", "next_offset"}, exclude_none=True)
    return plain | texts
