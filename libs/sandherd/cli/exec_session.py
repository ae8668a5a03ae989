"""Runs a command in a sandbox, shows its output here, and returns its exit status."""

import asyncio
import codecs
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import sandbox_of
from sandherd.cli.options import Format
from sandherd.cli.parse.task_spec import variables
from sandherd.cli.parse.units import seconds
from sandherd.cli.render import console
from sandherd.cli.render.console import Paint
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError, checked_name
from sandherd.client.herd import Herd
from sandherd.client.sandboxes.execution import Execution, command, exit_status
from sandherd.client.terminal_text import may_write_exactly, write_exactly, write_output, write_text
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import INLINE_BYTES, ExecOutput, ExecState
from sandherd.plurals import pluralize

_END_TEXTS: Final = {
    "timed_out": "timed out",
    "killed": "killed",
    "failed": "could not be started",
}
"""Texts for the states of commands that have ended without an exit status of their own."""


def run(
    sandbox: str, argv: Sequence[str], output: Format, *, env: Sequence[str], timeout: str, **arguments: Any
) -> Work:
    """A function that runs a command. An invalid command raises `HerdError` here, before any connection is made."""
    options = {"cwd": arguments["cwd"], "env": variables(env, os.environ), "timeout": seconds(timeout, "--timeout")}
    command(sandbox, argv, **options)  # raises for an invalid command, before standard input is read
    stdin = _read_standard_input() if arguments["stdin"] else None
    command(sandbox, argv, stdin=stdin, **options)

    async def work(herd: Herd) -> int:
        execution = await herd.exec(await sandbox_of(herd, sandbox), argv, stdin=stdin, **options)
        if arguments["detach"]:
            return _show_name(execution, output)
        try:
            return await _show_output(execution, output)
        except asyncio.CancelledError:
            await execution.end()
            raise

    return work


def detached_command(sandbox: str, output: Format, *, status: str | None, kill: str | None) -> Work:
    """A function that ends the detached command that `kill` names, or else shows the one that `status` names."""
    name = checked_name(status or kill or "", "exec")

    async def work(herd: Herd) -> int:
        execution = herd.execution(await sandbox_of(herd, sandbox), name)
        if kill is not None:
            return _show_state(await execution.kill(), output)
        pieces = [piece async for piece in execution.now()]
        assert execution.state is not None
        return _show_detached(execution.state, pieces, output)

    return work


def _read_standard_input() -> bytes:
    """All of standard input. Raises `HerdError` if it is longer than `INLINE_BYTES`."""
    data = sys.stdin.buffer.read(INLINE_BYTES + 1)
    if len(data) > INLINE_BYTES:
        raise HerdError.of(
            Code.TOO_LARGE,
            f"standard input has more than {INLINE_BYTES} bytes",
            field="stdin",
            remedy="copy it into the sandbox with `sandherd cp`, and let the command read the file",
        )
    return data


def _show_name(execution: Execution, output: Format) -> int:
    if output.is_json:
        console.print_document(output, {"sandbox": execution.sandbox, "exec": execution.name})
    else:
        write_text(execution.name)
    return 0


async def _show_output(execution: Execution, output: Format) -> int:
    pieces: list[ExecOutput] = []
    writer = _Writer()
    async for piece in execution.output():
        if output.is_json:
            pieces.append(piece)
        else:
            writer.write(piece)
    assert execution.state is not None
    if output.is_json:
        console.print_document(output, _document(execution.state, pieces))
    else:
        _print_problem(execution.state)
    return exit_status(execution.state)


class _Writer:
    """Writes the output of a command: unchanged to a pipe or a file, without control sequences to a terminal."""

    def __init__(self) -> None:
        new_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": new_decoder("replace"), "stderr": new_decoder("replace")}
        self._colours = Paint.for_screen().on

    def write(self, piece: ExecOutput) -> None:
        """Write a chunk and flush."""
        error = piece.stream == "stderr"
        if may_write_exactly(error=error):
            write_exactly(piece.data, error=error)
        else:
            text = self._decoders[piece.stream].decode(piece.data)
            write_output(text, colours=self._colours, error=error)


def _print_problem(state: ExecState) -> None:
    problem = _END_TEXTS.get(state.state)
    if state.state == "timed_out" and state.started_at and state.ended_at:
        problem = f"timed out after {(state.ended_at - state.started_at).total_seconds():.0f} s"
    if problem is not None:
        print_error(f"{state.exec}: {problem}" + (f": {state.error}" if state.error else ""))
    if state.dropped_bytes:
        print_error(f"{state.exec}: {pluralize(state.dropped_bytes, 'byte')} of its output dropped")


def _show_detached(state: ExecState, pieces: Sequence[ExecOutput], output: Format) -> int:
    if output.is_json:
        console.print_document(output, _document(state, pieces))
        return _detached_exit_status(state)
    writer = _Writer()
    for piece in pieces:
        writer.write(piece)
    print_error(_state_line(state))
    return _detached_exit_status(state)


def _detached_exit_status(state: ExecState) -> int:
    """The exit status of a command that has ended; 0 while it runs."""
    return 0 if state.state == "running" else exit_status(state)


def _show_state(state: ExecState, output: Format) -> int:
    if output.is_json:
        console.print_document(output, _document(state, []))
    else:
        signal_text = f"{state.exec}: signal sent; see its state with --status"
        write_text(signal_text if state.state == "running" else _state_line(state))
    return 0


def _state_line(state: ExecState) -> str:
    ended = "" if state.exit_code is None else f" with status {state.exit_code}"
    return f"{state.exec}: {state.state}{ended}"


def _document(state: ExecState, pieces: Sequence[ExecOutput]) -> dict[str, Any]:
    """A command with its output, as JSON. Bytes that are not valid UTF-8 are replaced."""
    texts = {
        stream: b"".join(piece.data for piece in pieces if piece.stream == stream).decode(errors="replace")
        for stream in ("stdout", "stderr")
    }
    plain = state.model_dump(mode="json", exclude={"output", "next_offset"}, exclude_none=True)
    return plain | texts
