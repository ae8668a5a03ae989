"""The command as forks of a process that has its modules: what tests rely on."""

import asyncio
import os
import subprocess
from asyncio.subprocess import DEVNULL
from pathlib import Path

import psutil

from tests.patience import PATIENCE
from tests.polling import eventually
from tests.run_reports import SERVERS


def run(program: Path, *words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [program, *words], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )  # fmt: skip


def test_fork_has_arguments_environment_and_streams_of_its_caller(sandherd_program: Path) -> None:
    """Its exit status is that of the command."""
    assert run(sandherd_program, "--version").stdout.startswith("sandherd ")
    wrong = run(sandherd_program, "nosuch")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    environ = {"PATH": os.environ["PATH"], "NATS_URL": "nats://example:1"}
    shown = run(sandherd_program, "config", "show", env=environ)
    assert shown.returncode == 0
    assert "nats://example:1" in shown.stdout
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run([sandherd_program, "--version"], stdout=full, stderr=subprocess.DEVNULL, check=False)
    assert failed.returncode == 1


async def test_fork_ends_with_its_caller(sandherd_program: Path) -> None:
    """SIGKILL can't be passed on: the server kills the command instead."""
    before = forks()
    command = [str(sandherd_program), "--nats-url", "nats://127.0.0.1:1", "tasks", "list"]
    launcher = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
    await eventually(lambda: forks() - before, "the command runs")
    (fork,) = forks() - before
    launcher.kill()
    await launcher.wait()
    await eventually(lambda: not psutil.pid_exists(fork), "the command has ended")


def forks() -> set[int]:
    """The commands that run."""
    return {fork.pid for server in SERVERS for fork in psutil.Process(server).children()}
