"""Tasks and sandboxes of the real stack, used only by the command."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.preloaded_cli import preloaded_sandherd

ROOT = Path(__file__).parents[2]
SANDHERD = ROOT / ".venv" / "bin" / "sandherd"
LARGE = bytes(range(256)) * 2048
SETTINGS = "max_attempts: 2\nprofiles:\n  small:\n    limits: {memory_mb: 512}\n    env: {KIND: small}\n"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Sandherd = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that the database's user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="line-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def sandherd(place: Path) -> Iterator[Sandherd]:
    """The command, and a stack with a settings file."""
    (place / "herd.yaml").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [preloaded_sandherd(), "--home", "home", "--config", "herd.yaml", *words],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    started = run("up")
    assert started.returncode == 0, started.stdout + started.stderr
    yield run
    run("down")


def checked_output(done: "subprocess.CompletedProcess[str]") -> str:
    """The output of a command that must have succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_sandbox_is_used_from_creation_to_its_end(sandherd: Sandherd, place: Path) -> None:
    """Commands, files and listings work in a sandbox; after its end they are refused."""
    sandbox = checked_output(sandherd("sandboxes", "create", "--profile", "small", "--ttl", "10m"))
    assert sandherd("exec", sandbox, "--", "sh", "-c", "echo $KIND; exit 4").stdout == "small\n"
    assert sandherd("exec", sandbox, "--", "sh", "-c", "exit 4").returncode == 4
    (place / "src").mkdir()
    (place / "src" / "large.bin").write_bytes(LARGE)
    checked_output(sandherd("cp", "-r", "src", f"{sandbox}:src"))
    listed = json.loads(checked_output(sandherd("ls", f"{sandbox}:src", "-o", "json")))
    assert [(entry["path"], entry["size"]) for entry in listed["entries"]] == [("src/large.bin", len(LARGE))]
    checked_output(sandherd("cp", f"{sandbox}:src/large.bin", "back.bin"))
    assert (place / "back.bin").read_bytes() == LARGE
    assert "paused" in checked_output(sandherd("sandboxes", "pause", sandbox))
    assert "running" in checked_output(sandherd("sandboxes", "resume", sandbox))
    checked_output(sandherd("sandboxes", "terminate", sandbox))
    checked_output(sandherd("events", sandbox, "--follow"))
    after = sandherd("exec", sandbox, "--", "true")
    assert after.returncode == 1
    assert "has ended" in after.stderr


def test_retried_task_has_the_work_of_its_first_attempt(sandherd: Sandherd) -> None:
    """The second attempt has the first one's work beside its own, and the events of both are shown."""
    program = (
        'test "$SANDHERD_ATTEMPT" = 2 && cd "$SANDHERD_PREVIOUS_DIR" && exec cat work/note; echo one > note; exit 5'
    )
    done = sandherd("run", "try", "--retry-also", "exit_status", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "task.retry_scheduled" in done.stdout
    assert "  │ one" in done.stdout
    task = json.loads(checked_output(sandherd("tasks", "list", "-o", "json")))["tasks"][0]
    assert (task["state"], task["attempt"], task["max_attempts"]) == ("completed", 2, 2)


def test_batch_file_runs_in_dependency_order(sandherd: Sandherd) -> None:
    """The example file is used unchanged."""
    given = json.loads(
        checked_output(sandherd("tasks", "submit", str(ROOT / "examples" / "batch" / "tasks.yaml"), "-o", "json"))
    )
    names = {task["name"]: task["task"] for task in given["tasks"]}
    checked_output(sandherd("events", names["report"], "--follow"))
    states = {
        name: json.loads(checked_output(sandherd("tasks", "get", task, "-o", "json")))["state"]
        for name, task in names.items()
    }
    assert states == {"fetch": "completed", "check": "completed", "report": "completed"}


def test_settings_file_applies_to_the_stack(sandherd: Sandherd, place: Path) -> None:
    """`config show` and the spawner use the file, named relative to the folder of `up`.

    A later command that does not name it shows the same, from any folder.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
    words = [str(SANDHERD), "--home", str(place / "home"), "config", "show", "-o", "json"]
    unnamed = json.loads(subprocess.run(words, cwd="/", env=environment, capture_output=True, check=True).stdout)
    assert (unnamed[0]["value"], unnamed[0]["source"]) == (str(place / "herd.yaml"), "context")
    assert {one["setting"]: one["value"] for one in unnamed}["max_attempts"] == "2"
    shown = {one["setting"]: one for one in json.loads(checked_output(sandherd("config", "show", "-o", "json")))}
    assert (shown["max_attempts"]["value"], shown["max_attempts"]["source"]) == ("2", "yaml")
    offered = json.loads(checked_output(sandherd("runtimes", "-o", "json")))
    assert offered["profiles"]["small"]["limits"]["memory_mb"] == 512
