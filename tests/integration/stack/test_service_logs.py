"""`sandherd services logs`: the logs of a local stack's parts, also during writes and rotations."""

import asyncio
import json
import os
import shutil
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.stack import down, up
from sandherd.stack.log_rotation import rotate
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

PARTS = ("nats", "postgres", "spawner", "event-ingest", "monitor", "message-relay", "gateway")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The home of a running stack."""
    directory = Path(tempfile.mkdtemp(prefix="logs-"))
    try:
        asyncio.run(up(directory))
        yield directory
    finally:
        asyncio.run(down(directory))
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A home with the log of one part that no process writes."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "spawner.log").write_text("one\ntwo\n")
    return tmp_path


async def start(home: Path, *words: str, **environ: str) -> Process:
    environ = {"PATH": os.environ["PATH"], "SANDHERD_HOME": str(home)} | environ
    return await asyncio.create_subprocess_exec(
        preloaded_sandherd(), "services", "logs", *words, env=environ, stdout=PIPE, stderr=PIPE
    )


async def sandherd(home: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    process = await start(home, *words, **environ)
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()


async def next_line(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await process.stdout.readline()).decode().rstrip()


@pytest.mark.parametrize("part", PARTS)
async def test_every_part_of_a_running_stack_has_a_log(home: Path, part: str) -> None:
    """The requested number of last lines is shown for each part, also as JSON."""
    status, out, _ = await sandherd(home, part, "-n", "2")
    assert status == 0
    assert 1 <= len(out.splitlines()) <= 2
    status, out, _ = await sandherd(home, part, "-n", "1", "-o", "json")
    assert (status, json.loads(out)["service"]) == (0, part)


async def test_unknown_part_is_an_error_that_names_the_others(home: Path) -> None:
    """The error is one line that names all parts with a log."""
    status, out, error = await sandherd(home, "spawnr")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert all(part in error for part in PARTS)


@pytest.mark.parametrize("words", [{"NATS_URL": "nats://herd.example:4222"}, {}])
async def test_herd_elsewhere_is_an_error_that_names_its_tools(tmp_path: Path, words: dict[str, str]) -> None:
    """For another address, or a home without a stack, nothing of a local stack is shown."""
    if words:
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "spawner.log").write_text("of another herd\n")
    status, out, error = await sandherd(tmp_path, "spawner", **words)
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert "kubectl logs" in error
    assert "docker compose logs" in error


async def test_lines_before_a_rotation_are_shown(files: Path) -> None:
    """The requested number of lines includes rotated files, oldest first."""
    log = files / "logs" / "spawner.log"
    rotate(files / "logs", max_bytes=1)
    log.write_text("three\n")
    assert (await sandherd(files, "spawner"))[1].split() == ["one", "two", "three"]
    assert (await sandherd(files, "spawner", "-n", "2"))[1].split() == ["two", "three"]


async def test_followed_log_has_every_line_across_a_rotation(files: Path) -> None:
    """Lines that were written and rotated between two reads are shown, too."""
    log = files / "logs" / "spawner.log"
    process = await start(files, "spawner", "-f", "-n", "1")
    try:
        assert await next_line(process) == "two"
        with log.open("a") as file:
            file.write("three\n")
        rotate(files / "logs", max_bytes=1)
        with log.open("a") as file:
            file.write("4\n")
        assert [await next_line(process), await next_line(process)] == ["three", "4"]
    finally:
        process.kill()
        await process.wait()


async def test_followed_log_ends_with_its_reader(files: Path) -> None:
    """When the reader ends, as `head` does, the command ends without an error."""
    script = f"'{preloaded_sandherd()}' services logs spawner -f | head -n 1; echo ${{PIPESTATUS[0]}}"
    environ = {"PATH": os.environ["PATH"], "SANDHERD_HOME": str(files)}
    process = await asyncio.create_subprocess_exec("bash", "-c", script, env=environ, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(PATIENCE):
        out, error = await process.communicate()
    assert (out.decode().split()[0], error) == ("one", b"")


async def test_escape_sequences_in_a_log_do_not_control_the_terminal(files: Path) -> None:
    """Escape sequences of a sandbox's text in a log have no effect on the terminal."""
    (files / "logs" / "spawner.log").write_text("a\x1b]52;c;x\x07b\n")
    out = (await sandherd(files, "spawner"))[1]
    assert "\x1b" not in out
    assert out.startswith("a␛")
