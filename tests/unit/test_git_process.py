"""A git process: its limits, and its end with all that it has started."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandherd.git_process import NOT_INSTALLED, SAFE_SETTINGS, OutputTooLargeError, ProcessLimits, run_git_process
from tests.polling import eventually

SLOW = "alias.slow=!echo $$ > part; mv part pid; sleep 600"
WRITES = "alias.writes=!head -c 2048 /dev/zero > file"


async def run(
    folder: Path, *arguments: str, path: str = os.environ["PATH"], **options: Any
) -> tuple[int, bytes, bytes]:
    limits = {"seconds": 60.0, "output_bytes": 1000, **options.pop("limits", {})}
    variables = {"PATH": path, "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return await run_git_process(
        arguments, environment=variables, folder=folder, limits=ProcessLimits(**limits), **options
    )


def has_ended(folder: Path) -> bool:
    """Whether the child has ended. It may not be reaped: other tests make this process adopt orphans."""
    pid = (folder / "pid").read_text().strip()
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_status_output_and_messages_are_returned(tmp_path: Path) -> None:
    """Git gets its input, and its output may be written to a file."""
    status, output, _ = await run(tmp_path, "hash-object", "--stdin", stdin=b"1\n")
    assert (status, output) == (0, b"d00491fd7e5bb6fa28c517a0bb32b8b506539d4d\n")
    status, output, messages = await run(tmp_path, "no-such-command")
    assert (status, output) == (1, b"")
    assert b"no-such-command" in messages
    with tempfile.TemporaryFile() as file:
        assert (await run(tmp_path, "--version", out=file))[1] == b""
        file.seek(0)
        assert file.read().startswith(b"git version")


async def test_missing_program_has_its_own_status(tmp_path: Path) -> None:
    """The shell that sets the limits returns it."""
    assert (await run(tmp_path, "--version", path=str(tmp_path)))[0] == NOT_INSTALLED


async def test_output_is_limited(tmp_path: Path) -> None:
    """The limit is inclusive."""
    limits = {"output_bytes": 5}
    assert (await run(tmp_path, "-c", "alias.five=!printf 12345", "five", limits=limits))[1] == b"12345"
    with pytest.raises(OutputTooLargeError, match="more than 5 bytes"):
        await run(tmp_path, "-c", "alias.six=!printf 123456", "six", limits=limits)


@pytest.mark.parametrize(("limit", "size"), [(None, 2048), (2048, 2048), (1500, 1536), (1024, 1024)])
async def test_files_are_limited(tmp_path: Path, limit: int | None, size: int) -> None:
    """The limit is rounded up to a block of 512 bytes."""
    status, _, _ = await run(tmp_path, "-c", WRITES, "writes", limits={"file_bytes": limit})
    assert ((tmp_path / "file").stat().st_size, status == 0) == (size, size == 2048)


async def test_memory_is_limited(tmp_path: Path) -> None:
    """Programs that git runs inherit the limit."""
    _, output, _ = await run(tmp_path, "-c", "alias.v=!ulimit -v", "v", limits={"memory_bytes": 2**30})
    assert output == b"1048576\n"


async def test_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """Its children are ended, too, if they were started before the limit."""
    with pytest.raises(TimeoutError):
        await run(tmp_path, "-c", SLOW, "slow", limits={"seconds": 1.0})
    await eventually(lambda: not (tmp_path / "pid").exists() or has_ended(tmp_path))


async def test_cancelled_process_has_ended(tmp_path: Path) -> None:
    """Its children have ended, too."""
    running = asyncio.ensure_future(run(tmp_path, "-c", SLOW, "slow"))
    await eventually(lambda: running.done() or (tmp_path / "pid").exists())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: has_ended(tmp_path))


async def test_hooks_do_not_run(tmp_path: Path) -> None:
    """The safe settings replace those of a repository."""
    await run(tmp_path, "init", "--quiet")
    hook = tmp_path / ".git/hooks/post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    settings = [argument for name, value in SAFE_SETTINGS.items() for argument in ("-c", f"{name}={value}")]
    for options, ran in ((settings, False), ([], True)):
        status, *_ = await run(tmp_path, *options, *author, "commit", "--quiet", "--allow-empty", "-m", "x")
        assert (status, (tmp_path / "ran").exists()) == (0, ran)
