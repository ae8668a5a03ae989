"""Runs git in the agent's repository, whose hooks, filters and settings may run programs.

So each git process is confined as an agent is, and has neither the worker's nor the task's variables. Processes that it
has started are ended.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from types import TracebackType
from typing import IO, Any, Final, Self

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.names import new_name
from sandherd.process_signals import end, send_group
from sandherd_worker.access.command_launch import CommandLaunch, LaunchedCommand, launch
from sandherd_worker.assignment import Assignment
from sandherd_worker.processes import EXEC_VARIABLE, PLACE_VARIABLE, SANDBOX_VARIABLE
from sandherd_worker.worker_resources import WorkerResources

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_COMMAND_TIMEOUT_SECONDS: Final = 600.0
"""How long one command may take, in seconds."""
_MAX_OUTPUT_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of output that are held in memory."""
_MAX_MESSAGE_BYTES: Final = 16 * 1024
"""How many bytes of the end of git's messages are read for an error."""
_MAX_SHOWN_CHARACTERS: Final = 500
"""How many characters of these are in the error's text."""
_READ_BYTES: Final = 64 * 1024
_LAST_OUTPUT_SECONDS: Final = 2.0
"""How long the pipes are read after git has ended, in seconds: a process that git started may hold them forever."""
_SETTINGS: Final[Mapping[str, str]] = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.fsync": "none",
    "core.quotePath": "false",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "checkout.workers": "0",
}
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}
MISSING: Final = (
    "git is not installed in this sandbox, and the task has a repository: use an image with git "
    "(`apt-get install git`, `apk add git`), or install it on the host of the runtime"
)


class NoGitError(Exception):
    """There is no git program here. The text states how to install it."""


class GitError(Exception):
    """Git has failed, or was ended. The text has its last messages, which the agent may have influenced."""


class OutputTooLargeError(GitError):
    """Git has printed more than the limit."""


@dataclass(frozen=True, kw_only=True)
class GitRepository:
    """The directories of a repository, and additional environment variables of git."""

    git_dir: Path
    work_tree: Path
    variables: Mapping[str, str] = field(default_factory=dict)


class Git:
    """The git processes of one operation. As a context manager, it finally ends all processes that they started."""

    def __init__(self, resources: WorkerResources) -> None:
        self._resources = resources
        self._name = new_name("git")
        self._started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            try:
                await end(lambda: self._resources.ownership.of(self._name), 0)
            finally:
                self._resources.ownership.remove(self._name)

    async def run(
        self,
        repository: GitRepository,
        *arguments: str,
        stdin: bytes | IO[bytes] | None = None,
        into: IO[bytes] | None = None,
        limit: int = _MAX_OUTPUT_BYTES,
        accepted: frozenset[int] = frozenset({0}),
    ) -> bytes:
        """Run a command, and return its output, unless that is written `into` a file.

        Raises `NoGitError`, `OutputTooLargeError` for more than `limit` bytes, `GitError` for an exit status that is
        not `accepted`, or after ten minutes, and `OSError`.
        """
        launched = await self._launch(repository, arguments, stdin)
        output = _Output(into, limit)
        reading = asyncio.gather(output.read(launched.stdout), _read_tail(launched.stderr))
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_SECONDS):
                code, messages = await self._finish(launched, reading)
        except TimeoutError:
            raise GitError(f"git {arguments[0]} took longer than {_COMMAND_TIMEOUT_SECONDS:.0f} s") from None
        finally:
            await cancel_and_wait([reading], again_after=SHORT_CLEANUP_SECONDS)
            await _kill(launched)
            launched.close()
        if code not in accepted:
            raise GitError(_failure(arguments[0], code, messages))
        return output.content

    async def _launch(
        self, repository: GitRepository, arguments: Sequence[str], stdin: bytes | IO[bytes] | None
    ) -> LaunchedCommand:
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = CommandLaunch(
            argv=["git", *settings, *arguments],
            environment=environment(self._resources.assignment, repository, self._name),
            folder=self._resources.assignment.work_dir,
            stdin=stdin,
        )
        try:
            launched = await launch(command, self._resources.reaper)
        except FileNotFoundError:
            raise NoGitError(MISSING) from None
        self._started = True
        self._resources.ownership.enter(self._name, launched.leader)
        return launched

    async def _finish(
        self, launched: LaunchedCommand, reading: "asyncio.Future[tuple[None, bytes]]"
    ) -> tuple[int, bytes]:
        """The exit code and the last messages of git."""
        exit_or_output: list[asyncio.Future[Any]] = [launched.exit, reading]
        await asyncio.wait(exit_or_output, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
        code = await launched.exit
        await asyncio.wait([reading], timeout=_LAST_OUTPUT_SECONDS)
        if not reading.done():
            await end(lambda: self._resources.ownership.of(self._name), 0)
        _, messages = await reading
        return code, messages


def environment(assignment: Assignment, repository: GitRepository, name: str) -> dict[str, str]:
    """The whole environment of a git process: none of the worker's credentials, none of the task's variables."""
    passed = {key: value for key, value in assignment.inherited.items() if key not in {"LANG", "LC_ALL"}}
    ownership_variables = {SANDBOX_VARIABLE: assignment.sandbox, PLACE_VARIABLE: assignment.place, EXEC_VARIABLE: name}
    directories = {"GIT_DIR": str(repository.git_dir), "GIT_WORK_TREE": str(repository.work_tree)}
    defaults = {"PATH": _PATH, "HOME": str(assignment.work_dir)}
    return {**defaults, **passed, **_ENVIRONMENT, **directories, **repository.variables, **ownership_variables}


class _Output:
    def __init__(self, into: IO[bytes] | None, limit: int) -> None:
        self._into, self._limit = into, limit
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    async def read(self, pipe: asyncio.StreamReader) -> None:
        while part := await pipe.read(_READ_BYTES):
            self._size += len(part)
            if self._size > self._limit:
                raise OutputTooLargeError(f"git printed more than {self._limit} bytes")
            if self._into is None:
                self._parts.append(part)
            else:
                await asyncio.to_thread(self._into.write, part)


async def _read_tail(pipe: asyncio.StreamReader) -> bytes:
    found = b""
    while part := await pipe.read(_READ_BYTES):
        found = (found + part)[-_MAX_MESSAGE_BYTES:]
    return found


async def _kill(launched: LaunchedCommand) -> None:
    if not launched.exit.done():
        send_group(launched.leader, SIGKILL)
        await asyncio.wait([launched.exit])


def _failure(command: str, code: int, messages: bytes) -> str:
    shown = " ".join(messages.decode("utf-8", "replace").split())[-_MAX_SHOWN_CHARACTERS:]
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return f"git {command} ended with {how}" + (f": {shown}" if shown else "")
