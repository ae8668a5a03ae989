"""Copies standard input to a file of a sandbox, and a file of a sandbox to standard output: `-` in `sandherd cp`."""

import codecs
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Final

from sandherd.cli.file_copy import ProgressBar, SandboxPath, sandbox_path, show_result
from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import full_name, kind_of, sandbox_of
from sandherd.cli.options import Format
from sandherd.cli.render.console import Paint
from sandherd.cli.task_results import check_relative, fetch_file
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import may_write_exactly, write_exactly, write_output
from sandherd.contracts.errors import Code
from sandherd.contracts.states import TASK_ENDED
from sandherd.settings.fields import MAX_FILE_MIB

STREAM: Final = "-"
_BLOCK_BYTES: Final = 1 << 20
_MAX_FILE_BYTES: Final = MAX_FILE_MIB * (1 << 20)
"""Maximum bytes of a file: no herd can be configured to accept more."""


def is_stream(*paths: str) -> bool:
    """Whether one of the paths is a standard stream."""
    return STREAM in paths


def copy(run_work: Callable[[Work], int], source: str, target: str, output: Format) -> int:
    """Copy from or to a standard stream. `run_work` connects and does the work. Returns the exit status.

    Raises `HerdError`, for invalid arguments before any connection is made.
    """
    remote = sandbox_path(target if source == STREAM else source)
    if remote is None:
        raise _invalid("the other path has to be in a sandbox", "write it as SANDBOX:PATH")
    if source != STREAM:
        if output.is_json:
            raise _invalid("standard output gets the file, and can't get JSON as well", "omit -o, or name a file")
        return run_work(lambda herd: _download(herd, remote))
    if remote.is_folder:
        raise _invalid("standard input has no file name", "name the file, as in SANDBOX:data.csv")
    with tempfile.TemporaryFile() as file:
        _read_input(file)  # before connecting: the connection could time out before the input ends
        return run_work(lambda herd: _upload(herd, file, remote, output))


async def _upload(herd: Herd, file: IO[bytes], remote: SandboxPath, output: Format) -> int:
    sandbox = await sandbox_of(herd, remote.sandbox)
    with ProgressBar("standard input") as bar:
        summary = await herd.upload(sandbox, file, remote.path, on_progress=bar.move)
    return show_result(output, f"{sandbox}:{remote.path}", summary.size, summary.sha256)


def _read_input(file: IO[bytes]) -> None:
    """Write standard input to a file. Raises `HerdError` if it is longer than any file may be."""
    while block := sys.stdin.buffer.read(_BLOCK_BYTES):
        if file.tell() + len(block) > _MAX_FILE_BYTES:
            raise HerdError.of(
                Code.TOO_LARGE,
                f"standard input has more than {_MAX_FILE_BYTES} bytes",
                field="path",
                remedy="copy it in parts",
            )
        file.write(block)


async def _download(herd: Herd, remote: SandboxPath) -> int:
    with tempfile.TemporaryFile() as file:
        with ProgressBar(remote.path) as bar:
            await _fetch(herd, remote, file, bar)
        file.seek(0)
        if may_write_exactly():
            while block := file.read(_BLOCK_BYTES):
                write_exactly(block)
        else:
            _show(file, remote.path)
    return 0


async def _fetch(herd: Herd, remote: SandboxPath, file: IO[bytes], bar: ProgressBar) -> None:
    name = await full_name(herd, remote.sandbox)
    if kind_of(name) == "task" and (await herd.task(name)).state in TASK_ENDED:
        check_relative(remote.path)
        return await fetch_file(herd, name, remote.path, file)
    result = await herd.download(await sandbox_of(herd, name), remote.path, file, on_progress=bar.move)
    if result.kind == "folder":
        raise _invalid(f"{remote.path} is a folder", "copy it with -r to a folder")
    return None


def _show(file: IO[bytes], path: str) -> None:
    """Show a text on a terminal without control sequences. Raises `HerdError` if the file is not text."""
    try:
        for _ in _text_blocks(file):  # checks the whole file first, so that nothing is shown of a file that is not text
            pass
    except UnicodeError:
        raise _invalid(f"{path} is not UTF-8 text; a terminal can't show it", "send it to a file or a pipe") from None
    file.seek(0)
    colours = Paint.for_screen().on
    for text in _text_blocks(file):
        write_output(text, colours=colours)


def _text_blocks(file: IO[bytes]) -> Iterator[str]:
    """The text of a file in pieces. Raises `UnicodeError` if the file is not UTF-8, or has a NUL character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    while block := file.read(_BLOCK_BYTES):
        if b"\0" in block:
            raise UnicodeError
        yield decoder.decode(block)
    decoder.decode(b"", final=True)


def _invalid(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="path", remedy=remedy)
