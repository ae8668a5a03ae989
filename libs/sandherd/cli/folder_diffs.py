"""Compares two folders with contents from sandboxes: writes the differences as a patch, and shows a patch."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from sandherd.archives.ignore import ignored_in
from sandherd.cli.git_directories import git_entries
from sandherd.cli.options import Format
from sandherd.cli.patch_headers import copy_with_headers
from sandherd.cli.render import console
from sandherd.cli.render.console import Paint
from sandherd.cli.render.event_line import diff_line, diff_lines
from sandherd.client.errors import HerdError
from sandherd.client.terminal_text import write_exactly, write_text
from sandherd.contracts.errors import Code

_GIT: Final = (
    "git", "diff", "--no-index", "--binary", "--no-prefix", "--no-ext-diff", "--no-textconv", "--no-color",
    "--no-renames",
)  # fmt: skip
"""The command that compares two folders. It runs no external diff programs and no text conversions."""
_CHUNK_BYTES: Final = 1024 * 1024
_MAX_LINE_BYTES: Final = 64 * 1024
"""Maximum bytes of a line to show on a terminal."""
LARGEST_DOCUMENT: Final = 64 * 1024 * 1024
"""Maximum bytes of a patch in a JSON document, which is in memory as a whole."""


def write(folder: Path, out: IO[bytes]) -> None:
    """Write the differences of the subfolders `a` and `b` as a patch.

    The patch leaves out git directories, and files that the ignore rules in `b` match.

    Raises `HerdError` if git is not installed, or fails.
    """
    # A result does not contain the files that git ignores. The patch must not delete or show those that `a` has.
    _drop_ignored(folder / "a", folder / "b", "", ignored_in(folder / "b", with_git=False))
    for path in list(git_entries(folder)):
        _remove(path)
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as patch:
        if _run_git(folder, patch, errors) > 1:
            errors.seek(0)
            reason = errors.read(_MAX_LINE_BYTES).decode(errors="replace").strip()
            raise HerdError.of(Code.INTERNAL, f"git failed: {reason[:300]}")
        patch.seek(0)
        copy_with_headers(patch, out)
    out.seek(0)


def _run_git(folder: Path, out: IO[bytes], errors: IO[bytes]) -> int:
    """Run `git diff`. Returns its exit status. Raises `HerdError` if git is not installed."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    try:
        return subprocess.run(
            [*_GIT, "a", "b"], cwd=folder, env=environment, stdout=out, stderr=errors, check=False
        ).returncode
    except FileNotFoundError:
        raise HerdError.of(
            Code.UNAVAILABLE, "git is not installed here", remedy="install it, or copy with `sandherd cp -r TASK:. DST`"
        ) from None


def show(patch: IO[bytes], name: str, output: Format, *, kind: str = "task", command: str = "sandherd diff") -> None:
    """Show the patch of a task or a branch: without control characters on a terminal, else unchanged or as JSON.

    Raises `HerdError` if the patch is too large for a JSON document.
    """
    if output.is_json:
        text = _document(patch, f"{command} {name}").decode(errors="replace")
        console.print_document(output, {kind: name, "diff": text})
    elif sys.stdout.isatty():
        _show_on_terminal(patch)
    else:
        while data := patch.read(_CHUNK_BYTES):
            write_exactly(data)


def _document(patch: IO[bytes], command: str) -> bytes:
    data = patch.read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT:
        raise HerdError.of(
            Code.TOO_LARGE,
            f"the patch has more than {LARGEST_DOCUMENT} bytes",
            field="output",
            remedy=f"write it to a file: `{command} >FILE`",
        )
    return data


def _show_on_terminal(patch: IO[bytes]) -> None:
    paint, at_line_start = Paint.for_screen(), True
    while data := patch.readline(_MAX_LINE_BYTES):
        is_complete = data.endswith(b"\n") or len(data) < _MAX_LINE_BYTES
        if at_line_start:  # the rest of a longer line is left out
            [line] = diff_lines(data.decode(errors="replace"))
            write_text(diff_line(line if is_complete else f"{line}…", paint))
        at_line_start = is_complete


def _drop_ignored(a: Path, b: Path, below: str, ignored: Callable[[str, bool], bool]) -> None:
    """Remove ignored entries of `a` that `b` does not have. `below` is the folder's path: empty, or ending with `/`."""
    for entry in list((a / below).iterdir()):
        path = f"{below}{entry.name}"
        directory = _is_folder(entry)
        if not ignored(path, directory):
            if directory:
                _drop_ignored(a, b, f"{path}/", ignored)
        elif directory and _is_folder(b / path):  # everything in an ignored folder is ignored
            _drop_ignored(a, b, f"{path}/", lambda _path, _directory: True)
        elif directory or not os.path.lexists(b / path):
            _remove(entry)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink()
