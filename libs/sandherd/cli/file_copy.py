"""Copies files between this machine and a sandbox, with a progress bar; lists a sandbox's folders."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Final, Self

from sandherd.cli.git_directories import GitFilter
from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import sandbox_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.status_line import StatusLine
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError, checked_name
from sandherd.client.herd import Herd
from sandherd.client.sandboxes import archive
from sandherd.client.terminal_text import visible_line, write_progress, write_text
from sandherd.contracts.errors import Code
from sandherd.contracts.names import SAFE_NAME_PATTERN, SANDBOX_PREFIX, TASK_PREFIX
from sandherd.contracts.requests import FileEntry
from sandherd.plurals import pluralize

HEADER = ("KIND", "MODE", "SIZE", "MODIFIED", "PATH")
_BAR_WIDTH: Final = 24
_MIB: Final = 1 << 20
_MAX_LISTED_LINKS: Final = 5


@dataclass(frozen=True)
class SandboxPath:
    """A path in a sandbox. The sandbox is given by its name or by that of its task."""

    sandbox: str
    path: str

    @property
    def is_folder(self) -> bool:
        """Whether the path is written as a folder: it ends with `/`, or its last part is `.` or `..`."""
        return self.path.endswith("/") or PurePosixPath(self.path).name in {"", ".", ".."}


def sandbox_path(text: str) -> SandboxPath | None:
    """Parse `SANDBOX:PATH` or `TASK:PATH`. Returns None for a local path. Raises `HerdError` for an invalid name.

    A valid name before a colon names a sandbox or task, as a host in scp. A local path with a colon has to be written
    with its folder: `./a:b`.
    """
    name, colon, path = text.partition(":")
    if not colon or not (name.startswith((SANDBOX_PREFIX, TASK_PREFIX)) or re.fullmatch(SAFE_NAME_PATTERN, name)):
        return None
    return SandboxPath(checked_name(name, "sandbox"), path or ".")


def copy(source: str, target: str, output: Format, *, recursive: bool, with_git: bool = False) -> Work:
    """A function that copies files. Folders from a sandbox are copied without `.git` unless `with_git`.

    Raises `HerdError` for invalid arguments, before any connection is made.
    """
    remote_source, remote_target = sandbox_path(source), sandbox_path(target)
    if (remote_source is None) == (remote_target is None):
        raise HerdError.of(
            Code.INVALID_FIELD,
            "one of the two paths has to be in a sandbox, and the other one local",
            field="path",
            remedy="write it as SANDBOX:PATH, and a local path that has a colon as ./a:b",
        )
    if remote_source is not None:
        git = GitFilter(with_git=with_git)
        git.check(remote_source.path)
        return lambda herd: download(herd, remote_source, Path(target), output, recursive=recursive, git=git)
    assert remote_target is not None
    local = Path(source)
    _check_local(local, recursive=recursive)
    return lambda herd: _upload(herd, local, remote_target, output)


def _check_local(local: Path, *, recursive: bool) -> None:
    if not local.exists():
        raise _invalid(f"{local}: there is no such file", "name an existing file or folder")
    if local.is_dir() and not recursive:
        raise _invalid(f"{local} is a folder", "copy it with -r")


async def _upload(herd: Herd, local: Path, remote: SandboxPath, output: Format) -> int:
    remote = replace(remote, sandbox=await sandbox_of(herd, remote.sandbox))
    path = await _target_path(herd, local, remote)
    with ProgressBar(str(local)) as bar:
        summary = await herd.upload(remote.sandbox, local, path, on_progress=bar.move)
    target = f"{remote.sandbox}:{path}"
    return show_result(output, target, summary.size, summary.sha256, folder=local.is_dir(), files=summary.files)


async def _target_path(herd: Herd, local: Path, remote: SandboxPath) -> str:
    """The target path.

    If the target is a folder, or is written as one, it is a path in this folder with the source's name.
    """
    name = local.resolve().name
    if not remote.is_folder:
        try:
            listing = await herd.files(remote.sandbox, remote.path, limit=2)
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND or error.problem.field == "sandbox":
                raise
            return remote.path
        normalized = str(PurePosixPath(remote.path))
        if [entry for entry in listing.entries if entry.path == normalized]:
            return remote.path
    return str(PurePosixPath(remote.path) / name)


async def download(  # one parameter for each option
    herd: Herd, remote: SandboxPath, target: Path, output: Format, *, recursive: bool, git: GitFilter
) -> int:
    """Copy out of a sandbox. Returns the exit status."""
    local = target / PurePosixPath(remote.path).name if target.is_dir() else target
    if not local.parent.is_dir():
        raise _invalid(f"{local.parent}: there is no such folder", "create it first")
    remote = replace(remote, sandbox=await sandbox_of(herd, remote.sandbox))
    with tempfile.NamedTemporaryFile(dir=local.parent, prefix=".sandherd-") as out, ProgressBar(remote.path) as bar:
        result = await herd.download(remote.sandbox, remote.path, out.file, on_progress=bar.move)
        if result.kind == "folder":
            if not recursive:
                raise _invalid(f"{remote.path} is a folder", "copy it with -r")
            warn_about_links(archive.unpack(out.file, local, skips=git, prune=git.prune))
            git.report()
        else:
            replace_file(out, local, result.mode)
    return show_result(output, str(local), result.size, result.sha256 or "", folder=result.kind == "folder")


def warn_about_links(links: Sequence[tuple[str, str]]) -> None:
    """Print one line about links that were not created here, because they may lead out of the folder."""
    if not links:
        return
    listed = ", ".join(visible_line(f"{name[:200]} -> {target[:200]}") for name, target in links[:_MAX_LISTED_LINKS])
    more = f" and {len(links) - _MAX_LISTED_LINKS} more" if len(links) > _MAX_LISTED_LINKS else ""
    subject = "a link that may lead" if len(links) == 1 else f"{len(links)} links that may lead"
    print_error(f"left out {subject} out of the folder: {listed}{more}")


def replace_file(out: Any, local: Path, mode: int) -> None:
    """Move the complete temporary file to `local`, atomically, with this mode."""
    out.file.flush()
    os.fchmod(out.file.fileno(), mode)
    if local.is_dir():
        raise _invalid(f"{local} is a folder", "name a file, or end it with /")
    # A second hard link is renamed over the existing file, because closing the temporary file removes its first name.
    spare = f"{out.name}.whole"
    os.link(out.name, spare)
    Path(spare).replace(local)


def show_result(output: Format, path: str, size: int, sha256: str, *, folder: bool = False, **fields: int) -> int:
    """Show what was copied. The size of a folder is the size of its archive. Returns the exit status."""
    if output.is_json:
        console.print_document(output, {"path": path, "size": size, "sha256": sha256, **fields})
    else:
        prefix = "a folder, as an archive of " if folder else ""
        write_text(f"{path}: {prefix}{pluralize(size, 'byte')}, SHA-256 {sha256[:16]}…")
    return 0


def entries(location: str, output: Format, *, recursive: bool) -> Work:
    """A function that lists a folder. An invalid sandbox name raises `HerdError` here."""
    folder = sandbox_path(location) or SandboxPath(checked_name(location, "sandbox"), ".")

    async def work(herd: Herd) -> int:
        listing = await herd.files(await sandbox_of(herd, folder.sandbox), folder.path, recursive=recursive)
        console.print_list(output, listing, HEADER, [_row(entry) for entry in listing.entries], name=path_of)
        if listing.truncated and not output.shows_truncation:
            print_error(f"only the first {pluralize(len(listing.entries), 'entry is', 'entries are')} shown")
        return 0

    return work


def path_of(row: Sequence[object]) -> str:
    """The path in a row of the list of files, by `HEADER`."""
    return console.cell(row[HEADER.index("PATH")])


def _row(entry: FileEntry) -> list[object]:
    return [entry.kind, f"{entry.mode:04o}", entry.size, entry.modified_at, entry.path]


class ProgressBar:
    """Shows the progress of a copy in the last line of the terminal, on standard error. Shows nothing elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = visible_line(name)
        self._is_shown = sys.stderr.isatty()
        self._started = time.monotonic()
        self._waiting = StatusLine(f"{self._name}  waiting")

    def move(self, transferred: int, size: int) -> None:
        """Show that `transferred` of `size` bytes were transferred."""
        if self._is_shown:
            self._waiting.step("")
            write_progress(self.line(transferred, size))

    def line(self, transferred: int, size: int) -> str:
        """The text of the line: name, bar, percentage and speed."""
        fraction = transferred / size if size else 1.0
        filled = round(_BAR_WIDTH * fraction)
        speed = transferred / _MIB / max(time.monotonic() - self._started, 0.001)
        return f"{self._name}  {'█' * filled}{'░' * (_BAR_WIDTH - filled)} {fraction:4.0%}  {speed:.1f} MiB/s"

    def __enter__(self) -> Self:
        self._waiting.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.__exit__(kind, error, trace)


def _invalid(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="path", remedy=remedy)
