"""Runs git(1) on a repository of this machine, without executing anything of a repository or a bundle.

The user's configuration of git is in effect, because it decides which repositories are trusted (`safe.directory`).
Hooks, fsmonitor and the network are not used. Variables such as `GIT_DIR` are removed, because a git hook that runs
this client has set them for another repository.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.process_signals import send_group

COMMAND_SECONDS: Final = 900.0
"""The default time limit of one command."""
_LIMITED_COMMAND: Final = 'test "$0" = 0 || ulimit -f "$0"; exec git "$@"'
_ULIMIT_BLOCK_BYTES: Final = 512
"""The unit of `ulimit -f` in bytes (POSIX)."""
_STOP_SECONDS: Final = 5.0
"""How long git may take to remove its lock files and incomplete packs before it is killed."""
_MAX_OUTPUT_BYTES: Final = 64 * 1024**2
_MAX_MESSAGE_LENGTH: Final = 300
_STATUS_NOT_FOUND: Final = 127
"""The status of a shell whose program does not exist."""
_SAFE_SETTINGS: Final[Mapping[str, str]] = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "credential.helper": "",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.file.allow": "always",
    "submodule.recurse": "false",
}
_INHERITED_VARIABLES: Final = (
    "GIT_CONFIG",
    "GIT_EXEC_PATH",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
)
_WITHOUT_USER_SETTINGS: Final[Mapping[str, str]] = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


class GitFailedError(HerdError):
    """Git refused, or failed. The message contains the output of git; `status` is its exit status."""

    status: int = 0


async def run_git(  # the options of a command
    folder: Path,
    *arguments: str,
    config: Mapping[str, str] | None = None,
    of_user: bool = True,
    out: IO[bytes] | None = None,
    file_bytes: int | None = None,
    seconds: float = COMMAND_SECONDS,
    accepted: frozenset[int] = frozenset({0}),
) -> tuple[int, bytes]:
    """Run git in a folder. Returns its exit status, one of `accepted`, and its output, which is empty with `out`.

    Without `of_user`, the user's configuration has no effect. `file_bytes` limits the size of a file that git writes.
    Raises `GitFailedError` for another status, and `HerdError` if git is not installed, or after `seconds`. After a
    time out or a cancellation, git and its children have ended.
    """
    settings = [
        argument
        for name, value in {**_SAFE_SETTINGS, **(config or {})}.items()
        for argument in ("-c", f"{name}={value}")
    ]
    blocks = 0 if file_bytes is None else file_bytes // _ULIMIT_BLOCK_BYTES + 1
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _LIMITED_COMMAND, str(blocks), *settings, *arguments),
        env=_environment(of_user=of_user),
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if out is None else out,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            output, errors = await asyncio.gather(_read_all(process.stdout), _read_all(process.stderr))
            status = await process.wait()
    except TimeoutError:
        raise _timeout_error(arguments[0], seconds) from None
    finally:
        await _end_process(process)
    if status not in accepted:
        raise _git_error(arguments[0], status, errors)
    return status, output


async def text_of(
    folder: Path, *arguments: str, of_user: bool = True, accepted: frozenset[int] = frozenset({0})
) -> str:
    """The output of git as text, without a line break at its end. Raises as `run_git`."""
    _, output = await run_git(folder, *arguments, of_user=of_user, accepted=accepted)
    return os.fsdecode(output).removesuffix("\n")


def _environment(*, of_user: bool) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    if of_user:
        inherited |= {name: value for name, value in os.environ.items() if name.startswith(_INHERITED_VARIABLES)}
    fixed = {
        "LC_ALL": "C",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    return inherited | fixed | ({} if of_user else dict(_WITHOUT_USER_SETTINGS))


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    """Everything until the end of the stream. Raises `HerdError` for more than `_MAX_OUTPUT_BYTES`."""
    parts, size = [], 0
    while stream is not None and (part := await stream.read(65_536)):
        parts.append(part)
        size += len(part)
        if size > _MAX_OUTPUT_BYTES:
            raise HerdError.of(Code.TOO_LARGE, f"git printed more than {_MAX_OUTPUT_BYTES} bytes", field="repository")
    return b"".join(parts)


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """End git and its children if they still run, even if this coroutine is cancelled meanwhile."""
    if process.returncode is not None:
        return
    send_group(process.pid, signal.SIGTERM)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
    finally:
        send_group(process.pid, signal.SIGKILL)
    await process.wait()


def _timeout_error(command: str, seconds: float) -> HerdError:
    return HerdError.of(
        Code.UNAVAILABLE,
        f"git {command} took longer than {seconds:.0f} s",
        field="repository",
        remedy="try again when the machine is less busy, or name a smaller repository",
    )


def _git_error(command: str, status: int, errors: bytes) -> HerdError:
    if status == _STATUS_NOT_FOUND:
        return HerdError.of(Code.UNAVAILABLE, "git is not installed here", field="repository", remedy="install git")
    lines = " ".join(errors.decode(errors="replace").split())
    error = GitFailedError.of(
        Code.REFUSED,
        f"git {command}: {lines[-_MAX_MESSAGE_LENGTH:] or f'it ended with status {status}'}",
        field="repository",
        remedy="correct what git reports, and try again",
    )
    error.status = status
    return error
