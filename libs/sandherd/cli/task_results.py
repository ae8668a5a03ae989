"""Lists and copies the result of a task, which is the files in its work tree at its end, and shows their diff."""

import shutil
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from sandherd.archives import limited_reader, writer
from sandherd.cli import branch_output, folder_diffs
from sandherd.cli.file_copy import (
    HEADER,
    SandboxPath,
    download,
    path_of,
    replace_file,
    sandbox_path,
    show_result,
    warn_about_links,
)
from sandherd.cli.git_directories import GitFilter
from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import full_name, kind_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.sandboxes import archive
from sandherd.contracts.chunks import digest_of
from sandherd.contracts.errors import Code
from sandherd.contracts.states import TASK_ENDED

LARGEST: Final = 8 * 1024 * 1024 * 1024
"""Maximum bytes of an unpacked result with its headers. A sandbox can create a small archive of a huge result."""
_KINDS: Final = {
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symlink",
    tarfile.REGTYPE: "file",
    tarfile.LNKTYPE: "file",
}
"""The kinds of entries as users see them, by the type in the archive."""


def files(start: str, output: Format) -> Work:
    """A function that lists the files of a task's result. `start` is the task's name, or a unique beginning of it."""

    async def work(herd: Herd) -> int:
        task = await full_name(herd, start, "task")
        with tempfile.TemporaryFile() as file:
            await herd.fetch_result(task, file)
            entries = sorted(_entries(file), key=path_in_entry)
        rows = [[entry[name] for name in ("kind", "mode", "size", "modified_at", "path")] for entry in entries]
        console.print_list(output, {"entries": entries}, HEADER, rows, name=path_of)
        return 0

    return work


def path_in_entry(entry: dict[str, Any]) -> str:
    """The path of an entry: the list is sorted by it."""
    return str(entry["path"])


def _entries(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    try:
        with limited_reader.opened(file, LARGEST) as (tar, _):
            for entry in limited_reader.entries(tar, LARGEST):
                yield {
                    "path": entry.name,
                    "kind": _KINDS.get(entry.type, "other"),
                    "size": entry.size,
                    "mode": f"{entry.mode & 0o777:04o}",
                    "modified_at": datetime.fromtimestamp(entry.mtime, UTC),
                }
    except (tarfile.TarError, limited_reader.UnpackedTooLargeError, OSError, ValueError, OverflowError) as error:
        raise _damaged(error) from None


def diff(start: str, output: Format) -> Work:
    """A function that shows the diff between the files that a task began with and its result, for `git apply`.

    For a task with a repository, it is the diff of its branch. A terminal gets the diff without control characters,
    any other output gets it unchanged.
    """

    async def work(herd: Herd) -> int:
        task = await full_name(herd, start, "task")
        if (await herd.task(task)).repository is not None:
            return await branch_output.diff(task, output, "sandherd diff")(herd)
        with _temporary_folder() as folder:
            await _unpack(folder / "a", lambda file: herd.fetch_start(task, file))
            await _unpack(folder / "b", lambda file: _fetch_existing(herd.fetch_result(task, file)))
            with tempfile.TemporaryFile() as patch:
                folder_diffs.write(folder, patch)
                folder_diffs.show(patch, task, output)
        return 0

    return work


def copy(source: str, target: str, output: Format, *, recursive: bool, with_git: bool = False) -> Work | None:
    """A function that copies from `TASK:PATH`: from the task's result, or from its sandbox if it has not ended.

    None if the source is not such a path, or the target is in a sandbox. Folders are copied without `.git` unless
    `with_git`. Raises `HerdError` for a path that leads out of the work tree.
    """
    remote = sandbox_path(source)
    if remote is None or kind_of(remote.sandbox) == "sandbox" or sandbox_path(target) is not None:
        return None
    git = GitFilter(with_git=with_git)
    git.check(remote.path)
    return _copy_work(remote.sandbox, remote.path, Path(target), output, recursive=recursive, git=git)


def _copy_work(  # one parameter for each option
    task: str, path: str, target: Path, output: Format, *, recursive: bool, git: GitFilter
) -> Work:
    check_relative(path)

    async def work(herd: Herd) -> int:
        name = await full_name(herd, task, "task")
        if (await herd.task(name)).state not in TASK_ENDED:
            return await download(herd, SandboxPath(name, path), target, output, recursive=recursive, git=git)
        return await copy_result(herd, name)

    async def copy_result(herd: Herd, task: str) -> int:
        with _temporary_folder() as folder:
            await _unpack(folder / "b", lambda file: _fetch_existing(herd.fetch_result(task, file)))
            entry = folder / "b" / path
            name = PurePosixPath(path).name
            local = target / name if target.is_dir() and name else target
            return _copy(_checked_entry(entry, path, task), path, local, output, recursive=recursive, git=git)

    return work


def check_relative(path: str) -> None:
    """Raise `HerdError` for a path that leads out of the work tree."""
    if path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise _invalid(f"{path}: the path has to be relative to the work tree", "omit / and ..")


async def fetch_file(herd: Herd, task: str, path: str, out: IO[bytes]) -> None:
    """Write a file of an ended task's result to `out`. Raises `HerdError`, also for a folder."""
    with _temporary_folder() as folder:
        await _unpack(folder / "b", lambda file: _fetch_existing(herd.fetch_result(task, file)))
        entry = _checked_entry(folder / "b" / path, path, task)
        if entry.is_dir():
            raise _invalid(f"{path} is a folder", "copy it with -r to a folder")
        with entry.open("rb") as content:
            shutil.copyfileobj(content, out)


def _checked_entry(entry: Path, path: str, task: str) -> Path:
    """The unpacked entry of a path. Raises `HerdError` if the result does not have it, or it is a link."""
    if entry.is_symlink() or not entry.exists():
        raise HerdError.of(
            Code.NOT_FOUND, f"the task has left no file {path}", field="path", remedy=f"see `sandherd files {task}`"
        )
    return entry


def _copy(  # one parameter for each option
    entry: Path, path: str, local: Path, output: Format, *, recursive: bool, git: GitFilter
) -> int:
    if not local.absolute().parent.is_dir():
        raise _invalid(f"{local.parent}: there is no such folder", "create it first")
    with tempfile.NamedTemporaryFile(dir=local.absolute().parent, prefix=".sandherd-") as out:
        if entry.is_dir():
            if not recursive:
                raise _invalid(f"{path} is a folder", "copy it with -r")
            writer.pack(entry, out.file, limit=None)
            warn_about_links(archive.unpack(out.file, local, skips=git, prune=git.prune))
            git.report()
        else:
            with entry.open("rb") as content:
                shutil.copyfileobj(content, out.file)
            replace_file(out, local, entry.stat().st_mode & 0o777)
        size, sha256 = digest_of(out.file)
    return show_result(output, str(local), size, sha256, folder=entry.is_dir())


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sandherd-") as folder:
        yield Path(folder)


async def _fetch_existing(fetching: Awaitable[None]) -> bool:
    """Wait for a fetch that always gets an archive, and return True."""
    await fetching
    return True


async def _unpack(folder: Path, fetch: Callable[[IO[bytes]], Awaitable[bool]]) -> None:
    """Unpack an archive into a new folder. Without an archive the folder is empty."""
    with tempfile.TemporaryFile() as file:
        if await fetch(file):
            archive.unpack(file, folder, limit=LARGEST)
    folder.mkdir(exist_ok=True)


def _damaged(error: Exception) -> HerdError:
    return HerdError.of(
        Code.REFUSED, f"the stored archive can't be read: {error}", field="task", remedy="retry the task"
    )


def _invalid(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field="path", remedy=remedy)
