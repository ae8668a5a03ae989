"""Runs git(1) with limits, and ends it together with its children. The client and the spawner use it."""

import asyncio
import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

from sandherd.process_signals import send_group

SAFE_SETTINGS: Final[Mapping[str, str]] = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "credential.helper": "",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.file.allow": "always",
    "submodule.recurse": "false",
}
"""The configuration with which git runs no program that a repository names, and fetches from local paths only."""
NOT_INSTALLED: Final = 127
"""The exit status if git is not installed."""
_BLOCK_BYTES: Final = 512
"""Bytes of a block, the unit of `ulimit -f` (POSIX)."""
_STOP_SECONDS: Final = 5.0
"""The time that git has after SIGTERM to remove its lock files and incomplete packs, before it is killed."""


class OutputTooLargeError(Exception):
    """Git has printed more than the limit."""


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """The limits of a git process. None: there is none of its own."""

    seconds: float
    output_bytes: int
    """Maximum bytes of its output, and of its messages."""
    file_bytes: int | None = None
    """Maximum bytes of each file that it writes, rounded up to a block."""
    memory_bytes: int | None = None


class GitExit(NamedTuple):
    """How git has ended: its exit status, its output, and its messages."""

    status: int
    output: bytes
    messages: bytes


async def run_git_process(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    limits: ProcessLimits,
    stdin: bytes = b"",
    out: IO[bytes] | None = None,
    pass_fds: Collection[int] = (),
) -> GitExit:
    """Run git in a folder with these arguments and variables. With `out`, its output is written to this file.

    Raises `TimeoutError` and `OutputTooLargeError`. Whenever this returns or raises, also after a cancellation, git has
    ended; so have its children, unless git ended before them.
    """
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", "; ".join([*_ulimits(limits), 'exec git "$@"']), "git", *arguments),
        env=environment,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if out is None else out,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    limit = limits.output_bytes
    try:
        async with asyncio.timeout(limits.seconds):
            output, messages, _ = await asyncio.gather(
                _read(process.stdout, limit), _read(process.stderr, limit), _write(process.stdin, stdin)
            )
            return GitExit(await process.wait(), output, messages)
    finally:
        await _end(process)


def _ulimits(limits: ProcessLimits) -> Iterator[str]:
    """The shell commands that set the limits of a file and of memory."""
    if limits.file_bytes is not None:
        yield f"ulimit -f {-(-limits.file_bytes // _BLOCK_BYTES)}"
    if limits.memory_bytes is not None:
        yield f"ulimit -v {limits.memory_bytes // 1024}"


async def _write(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    """Write the content to a process, which may end without reading it."""
    if stream is not None:
        with suppress(BrokenPipeError, ConnectionResetError):
            stream.write(content)
            await stream.drain()
        stream.close()


async def _read(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    """Read a stream to its end. Raises `OutputTooLargeError`."""
    parts, size = [], 0
    while stream is not None and (part := await stream.read(65_536)):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise OutputTooLargeError(f"git printed more than {limit} bytes")
    return b"".join(parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End git and its children if they still run. They end even if this is cancelled."""
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
