"""Replays the session of a sandbox, and shows versions of its files: `sandherd replay` and `files --versions`."""

import asyncio
from pathlib import Path
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import sandbox_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.comparison import VERSIONS, version_row
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.replay import ReplayFrame, cast_lines, replay_frames, with_pauses, without_repetitions
from sandherd.client.terminal_text import visible, write_output, write_text
from sandherd.contracts.errors import Code

_MAX_ENTRIES: Final = 200_000
"""Maximum entries of a session's transcript that are held in memory."""


def replay(name: str, *, speed: float, cast: Path | None, output: Format) -> Work:
    """The work of playing a session in this terminal, or of writing it as an asciicast."""

    async def work(herd: Herd) -> int:
        sandbox = await sandbox_of(herd, name)
        shown = await _frames(herd, sandbox)
        if cast is not None:
            _write_cast(cast, shown, sandbox, speed)
        elif output.is_json:
            for one in shown:
                console.line({"time": one.time, "kind": one.kind, "text": one.text})
        else:
            await _play(shown, speed)
        return 0

    return work


async def _frames(herd: Herd, sandbox: str) -> list[ReplayFrame]:
    chunks = [chunk async for chunk in herd.output(sandbox)]
    entries = []
    async for entry in herd.transcript(sandbox):
        entries.append(entry)
        if len(entries) == _MAX_ENTRIES:
            print_error(f"only the first {_MAX_ENTRIES} entries are played")
            break
    return replay_frames(chunks, entries)


async def _play(shown: list[ReplayFrame], speed: float) -> None:
    colours = console.Paint.for_screen().on
    for pause, one in with_pauses(without_repetitions(shown), speed=speed):
        await asyncio.sleep(pause)
        if one.kind == "output":
            write_output(one.text, colours=colours)
        else:
            write_text(visible(one.text), end="", flush=True)


def _write_cast(path: Path, shown: list[ReplayFrame], sandbox: str, speed: float) -> None:
    try:
        with path.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(cast_lines(shown, title=sandbox, speed=speed))
    except OSError as error:
        text = f"{path}: {error.strerror or error}"
        raise HerdError.of(Code.INVALID_FIELD, text, field="cast", remedy="name a file that can be written") from None


def versions(name: str, path: str | None, number: int | None, output: Format) -> Work:
    """The work of listing versions of files. With a number, it shows the content of one version, or else its diff."""

    async def work(herd: Herd) -> int:
        sandbox = await sandbox_of(herd, name)
        if number is not None and path is not None:
            return await _show_version(herd, sandbox, path, number, output)
        found = [one async for one in herd.file_versions(sandbox, path)]
        if path is not None and not found:
            message, remedy = f"the sandbox has not changed a file {path!r}", f"see `sandherd files {name} --versions`"
            raise HerdError.of(Code.NOT_FOUND, message, field="path", remedy=remedy)
        console.answer(output, {"versions": found}, VERSIONS, [version_row(one) for one in found])
        return 0

    return work


async def _show_version(herd: Herd, sandbox: str, path: str, number: int, output: Format) -> int:
    found = await herd.file_version(sandbox, path, number)
    if output.is_json:
        console.document(output, found)
        return 0
    if found.content is None:
        print_error("its content can't be restored from the history; this is the change")
    shown = found.content if found.content is not None else found.diff or found.version.diff or ""
    write_text(visible(shown), end="" if shown.endswith("\n") else "\n")
    return 0
