"""A runtime and a harness of third parties in their own wheels: the examples of docs/plugins.md, unchanged."""

import asyncio
import io
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from sandherd.contracts.commands import SubmitTask, TaskSpec
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import ExamineSpawner, ListRuntimes, PartKind
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.spawner_environment import environment
from tests.integration.spawner.test_spawner_own_worker import PROGRAM
from tests.integration.spawner.wheels import uv, wheel
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_python

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "plugins"
BROKEN = '"""A plugin whose library is not installed."""\nimport acme_library_that_is_not_here\n'
Start = Callable[..., Awaitable[None]]


def broken(folder: Path, name: str, group: str, entries: str, code: str) -> None:
    """Install a distribution with one module and these entry points, as an installer does."""
    package, info = folder / name.replace("-", "_"), folder / f"{name.replace('-', '_')}-0.3.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entries}\n")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which both examples are installed from their wheels, beside three unusable plugins."""
    folder = tmp_path_factory.mktemp("plugins")
    wheel(EXAMPLES / "runtime", folder)
    wheel(EXAMPLES / "harness", folder)
    there = folder / "installed"
    uv("pip", "install", "--no-deps", "--target", there, *(folder / "wheels").glob("*.whl"))
    moon = "moon = acme_moon.plugin:open_moon\nprocess = acme_moon.plugin:open_moon\nsun = acme_moon.plugin:sun"
    broken(there, "acme-moon", "sandherd.runtimes", moon, BROKEN)
    mute = "mute = acme_mute.plugin:MUTE\ncommand = acme_mute.plugin:MUTE"
    broken(there, "acme-mute", "sandherd.harnesses", mute, "MUTE = 'no kind'\n")
    broken(there, "acme-sun", "sandherd.runtimes", "sun = acme_sun.plugin:sun", "")
    return there


@pytest.fixture
async def start(herd: Broker, home: Path, plugins: Path, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts a spawner as its operator does, with these variables; it finds the plugins."""
    processes: list[asyncio.subprocess.Process] = []
    settings = herd.settings(Principal.SPAWNER, home=home, check_interval=0.5, stop_grace=5, max_attempts=1)

    async def start_it(**variables: str) -> None:
        environ = environment(settings) | variables | {"PYTHONPATH": str(plugins)}
        with (tmp_path / "log").open("ab") as log:
            processes.append(
                await asyncio.create_subprocess_exec(
                    preloaded_python(), str(PROGRAM), env=environ, stdout=log, stderr=log
                )
            )

    yield start_it
    for process in processes:
        process.terminate()
        assert await process.wait() == 0, (tmp_path / "log").read_text()[-3000:]


async def submit(person: Any, harness: dict[str, Any], **spec: Any) -> str:
    name = new_name("task")
    spec_of = TaskSpec.model_validate({"text": "hello, herd", "harness": harness, **spec})
    await person.command(SubmitTask(task=name, spec=spec_of), name)
    return name


async def test_task_runs_with_runtime_and_harness_plugins(start: Start, person: Any, tmp_path: Path) -> None:
    """A task completes with both plugins, installed from wheels: with the harness's events, in the plugin's sandbox."""
    folder = tmp_path / "fast-disk"
    await start(SANDHERD_RUNTIME="acme", SANDHERD_RUNTIME_ACME_FOLDER=str(folder))
    task = await submit(person, {"kind": "echo", "times": 2})
    view = await person.ended(task)
    assert (view.state, view.harness) == ("completed", "echo"), view.error
    assert (await person.sandbox(view.sandbox)).runtime == "acme"
    assert (folder / "sandboxes").is_dir()
    spec_of = [event["data"] for event in person.unique() if event["subject"] == view.sandbox]
    assert [data["content"] for data in spec_of if "content" in data] == ["hello, herd"] * 2
    assert person.event_data(view.sandbox, "agent.started")["sdk"] == "echo"
    assert person.event_data(view.sandbox, "agent.completed")["final_output"] == "hello, herd"
    (runtime,) = (await person.bus.ask(ListRuntimes(), "p1", timeout=PATIENCE)).runtimes
    assert (runtime.runtime, runtime.plugin) == ("acme", "acme-sandboxes 1.0")


async def test_unusable_plugin_affects_no_other(start: Start, person: Any) -> None:
    """Each unusable plugin is named with its distribution and the reason; tasks with other plugins run."""
    await start(SANDHERD_RUNTIMES="moon,sun,acme")
    task = await submit(person, {"kind": "command", "argv": ["true"]})
    assert (await person.ended(task)).state == "completed"
    offer = await person.bus.ask(ListRuntimes(), "p1", timeout=PATIENCE)
    assert offer.harnesses == ["command", "claude", "openhands", "acp", "echo", "mute"]
    gaps = {runtime.runtime: " ".join(runtime.gaps) for runtime in offer.runtimes}
    assert "acme-moon 0.3 can't be imported: ModuleNotFoundError: No module named 'acme_library" in gaps["moon"]
    assert "acme-moon 0.3" in gaps["sun"]
    assert "acme-sun 0.3: several distributions use this name" in gaps["sun"]
    assert "SANDHERD_RUNTIME_ACME_FOLDER: folder: it is required" in gaps["acme"]
    found = (await person.bus.ask(ExamineSpawner(), "p1", timeout=PATIENCE)).parts
    problems = {part.name: part.problem for part in found if part.kind in {PartKind.RUNTIME, PartKind.WARNING}}
    assert problems["process"] is None
    assert "acme_library" in problems["moon"]
    assert problems["harness mute"] == "harness 'mute' of acme-mute 0.3: expected a HarnessKind, found str"
    refused = await submit(person, {"kind": "echo"}, runtime="moon")
    await person.receives(refused, "task.rejected")
    assert "acme-moon 0.3 can't be imported" in person.event_data(refused, "task.rejected")["reason"]


REJECTED: Final = (
    ({"kind": "wizard"}, "spec.harness.kind", "there is no harness 'wizard' here; there is: acp, claude, command, "),
    ({"kind": "mute"}, "spec.harness.kind", "acme-mute 0.3: expected a HarnessKind"),
    ({"kind": "echo", "times": 101}, "spec.harness.times", "times: it has to be at most 100"),
    ({"kind": "echo", "volume": "s3cret"}, "spec.harness.volume", "it is not a known field"),
)


async def test_task_is_rejected_by_the_model_of_its_harness(start: Start, person: Any) -> None:
    """The spawner rejects a task that its harness's model does not accept; it names the field, but no value."""
    await start()
    for harness, field, why in REJECTED:
        task = await submit(person, harness)
        await person.receives(task, "task.rejected")
        rejected = person.event_data(task, "task.rejected")
        assert rejected["field"] == field
        assert why in rejected["reason"]
        assert "s3cret" not in str(rejected)


async def test_uninstalled_runtime_is_refused_with_the_installed_ones(herd: Broker, home: Path) -> None:
    """The spawner exits with an uninstalled runtime, as with every invalid setting, and names the installed ones."""
    settings = herd.settings(Principal.SPAWNER, home=home)
    environ = environment(settings) | {"SANDHERD_RUNTIMES": "mars"}
    spawner = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "spawner.main", env=environ, stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    spec_of, _ = await spawner.communicate()
    assert b"there is no runtime 'mars'; installed here: daytona, docker, kubernetes, process, remote" in spec_of
    assert spawner.returncode != 0


def test_uploaded_worker_contains_harness_plugins(plugins: Path) -> None:
    """The uploaded worker has the harness plugins with their entry points; runtime plugins stay with the spawner."""
    command = [sys.executable, "-P", "-m", "sandherd.worker_bundle"]
    environ = {"PATH": "", "PYTHONPATH": str(plugins)}
    archive = subprocess.run(command, env=environ, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        names = set(packed.getnames())
    assert {"lib/acme_echo/driver.py", "lib/acme_echo-1.0.dist-info/entry_points.txt"} <= names
    assert not [name for name in names if "acme_sandboxes" in name]
