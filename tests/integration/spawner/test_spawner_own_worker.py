"""The runtime with which the guide for workers starts one's own worker, installed from its wheel."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from message_relay.main import compose as compose_relay
from sandherd.contracts.commands import AnswerApproval, SubmitTask, TaskSpec
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import ListRuntimes
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.spawner_environment import environment
from tests.integration.spawner.test_spawner_foreign_worker import GUIDE, program
from tests.integration.spawner.wheels import uv, wheel
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_python

PROGRAM = Path(__file__).with_name("whole_spawner.py")


def block(language: str) -> str:
    """The only code block of the guide in this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the guide's distribution is installed."""
    folder = tmp_path_factory.mktemp("own")
    source = folder / "own-worker"
    package = source / "own_worker"
    package.mkdir(parents=True)
    (source / "pyproject.toml").write_text(block("toml"))
    (package / "__init__.py").write_text("")
    (package / "worker.py").write_text(program())
    (package / "runtime.py").write_text(block("python runtime"))
    wheel(source, folder)
    uv("pip", "install", "--no-deps", "--target", folder / "installed", *(folder / "wheels").glob("*.whl"))
    return folder / "installed"


@asynccontextmanager
async def spawner_with(herd: Broker, home: Path, installed: Path, log: Path, **variables: str) -> AsyncIterator[None]:
    """The spawner as an operator starts it, with these variables, and with an installed distribution."""
    settings = herd.settings(Principal.SPAWNER, home=home, check_interval=0.5, stop_grace=5, max_attempts=1)
    environ = environment(settings) | variables | {"PYTHONPATH": str(installed)}
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            preloaded_python(), str(PROGRAM), env=environ, stdout=out, stderr=out
        )
    try:
        yield
    finally:
        process.terminate()
        assert await process.wait() == 0, log.read_text()[-3000:]


async def test_runtime_of_the_guide_starts_its_worker(
    herd: Broker, home: Path, installed: Path, tmp_path: Path, person: Any
) -> None:
    """A task that chooses the guide's runtime, which the guide's setting names, runs with the guide's worker."""
    relay = compose_relay(herd.settings(Principal.MESSAGE_RELAY))
    log = tmp_path / "log"
    async with relay.running(), spawner_with(herd, home, installed, log, SANDHERD_RUNTIMES="process,own"):
        task = new_name("task")
        harness = {"kind": "command", "argv": ["echo", "started by the guide"]}
        spec = TaskSpec.model_validate({"text": "hello", "harness": harness, "runtime": "own"})
        await person.command(SubmitTask(task=task, spec=spec), task)
        sandbox = (await person.reaches(task, "running")).sandbox
        await person.receives(sandbox, "approval.requested")
        requested = person.event_data(sandbox, "approval.requested")["approval_id"]
        answer = AnswerApproval(message=new_name("msg"), sandbox=sandbox, approval_id=requested, granted=True)
        await person.command(answer, sandbox)
        view = await person.ended(task)
        assert (view.state, view.result["final_output"]) == ("completed", "started by the guide\n"), view.error
        assert person.event_data(sandbox, "agent.started")["sdk"] == "example"
        assert (await person.sandbox(sandbox)).runtime == "own"
        runtimes = (await person.bus.ask(ListRuntimes(), "p1", timeout=PATIENCE)).runtimes
        assert {one.runtime: one.plugin for one in runtimes}["own"] == "own-worker 1.0"
        await person.all_gone()
