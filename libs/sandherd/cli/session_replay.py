"""Replays the session of a sandbox, and shows versions of its files: `sandherd replay` and `files --versions`."""

import asyncio
from pathlib import Path
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import sandbox_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.comparison import VERSIONS_HEADER, version_row
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.replay import ReplayFrame, cast_lines, replay_frames, with_pauses, without_repetitions
from sandherd.client.terminal_text import visible, write_output, write_text
from sandherd.contracts.errors import Code

_MAX_ENTRIES: Final = 200_000
"""Maximum entries of a session's transcript that are held in memory."""


def replay(name: str, *, speed: float, cast: Path | None, output: Format) -> Work:
    """A function that plays a session in this terminal, or writes it as an asciicast."""

    async def work(herd: Herd) -> int:
        sandbox = await sandbox_of(herd, name)
        frames = await _frames(herd, sandbox)
        if cast is not None:
            _write_cast(cast, frames, sandbox, speed)
        elif output.is_json:
            for frame in frames:
                console.print_line({"time": frame.time, "kind": frame.kind, "text": frame.text})
        else:
            await _play(frames, speed)
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


async def _play(frames: list[ReplayFrame], speed: float) -> None:
    colours = console.Paint.for_screen().on
    for pause, frame in with_pauses(without_repetitions(frames), speed=speed):
        await asyncio.sleep(pause)
        if frame.kind == "output":
            write_output(frame.text, colours=colours)
        else:
            write_text(visible(frame.text), end="", flush=True)


def _write_cast(path: Path, frames: list[ReplayFrame], sandbox: str, speed: float) -> None:
    try:
        with path.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(cast_lines(frames, title=sandbox, speed=speed))
    except OSError as error:
        text = f"{path}: {error.strerror or error}"
        raise HerdError.of(Code.INVALID_FIELD, text, field="cast", remedy="name a file that can be written") from None


def versions(name: str, path: str | None, number: int | None, output: Format) -> Work:
    """A function that lists versions of files. With a number, it shows the content of one version, or else its diff."""

    async def work(herd: Herd) -> int:
        sandbox = await sandbox_of(herd, name)
        if number is not None and path is not None:
            return await _show_version(herd, sandbox, path, number, output)
        file_versions = [version async for version in herd.file_versions(sandbox, path)]
        if path is not None and not file_versions:
            message, remedy = f"the sandbox has not changed a file {path!r}", f"see `sandherd files {name} --versions`"
            raise HerdError.of(Code.NOT_FOUND, message, field="path", remedy=remedy)
        console.print_list(
            output, {"versions": file_versions}, VERSIONS_HEADER, [version_row(version) for version in file_versions]
        )
        return 0

    return work


async def _show_version(herd: Herd, sandbox: str, path: str, number: int, output: Format) -> int:
    content = await herd.file_version(sandbox, path, number)
    if output.is_json:
        console.print_document(output, content)
        return 0
    if content.content is None:
        print_error("its content can't be restored from the history; this is the change")
    text = content.content if content.content is not None else content.diff or content.version.diff or ""
    write_text(visible(text), end="" if text.endswith("\n") else "\n")
    return 0
