"""A worker in Node.js, written from the guide for workers and started by the guide's runtime, with real services.

The program is `examples/worker`. Its wheel is built as the guide describes, with its packages of npm in it.
"""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from sandherd.contracts.commands import CancelTask, SendMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.test_spawner_foreign_worker import (
    ENDS,
    LONG_OUTPUT,
    answer,
    begun,
    check_artifact,
    check_history,
    kill_worker,
)
from tests.integration.spawner.test_spawner_own_worker import block, spawner_with
from tests.integration.spawner.wheels import uv, wheel
from tests.npm_packages import WORKER, node_with
from tests.polling import eventually

TEXT = "mind the gap \N{GRINNING FACE}"


def runtime(node: str) -> str:
    """The guide's runtime, changed as the guide describes for another language."""
    own = re.sub(r"^WORKER = .*\n", lambda _: block("python node"), block("python runtime"), flags=re.MULTILINE)
    return (
        own.replace("import sys\n", "", 1)
        .replace("\nfrom spawner", "\nfrom pathlib import Path\n\nfrom spawner", 1)
        .replace("/usr/bin/node", node)
    )


def project() -> str:
    """The guide's pyproject.toml, changed as the guide describes."""
    whole = block("toml").replace(', "nats-py", "nkeys"', "")
    return re.sub(r"^\[tool\.hatch.*", lambda _: block("toml wheel"), whole, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the distribution with the worker in Node.js is installed."""
    node, packages = node_with(WORKER)
    folder = tmp_path_factory.mktemp("node")
    source = folder / "own-worker"
    package = source / "own_worker"
    package.mkdir(parents=True)
    (source / "pyproject.toml").write_text(project())
    (package / "__init__.py").write_text("")
    (package / "runtime.py").write_text(runtime(node))
    for name in ("worker.mjs", "package.json"):
        shutil.copy(packages / name, package)
    shutil.copytree(packages / "node_modules", package / "node_modules")
    wheel(source, folder)
    uv("pip", "install", "--no-deps", "--target", folder / "installed", *(folder / "wheels").glob("*.whl"))
    return folder / "installed"


@pytest.fixture
async def herd_of_node(herd: Broker, home: Path, installed: Path, postgres: str, tmp_path: Path) -> AsyncIterator[None]:
    """The spawner, whose sandboxes run the worker in Node.js, message-relay and event-ingest."""
    services = [
        compose_relay(herd.settings(Principal.MESSAGE_RELAY)),
        compose_ingest(herd.settings(Principal.EVENT_INGEST, database_url=postgres)),
    ]
    variables = {"SANDHERD_RUNTIMES": "process,own", "SANDHERD_RUNTIME": "own", "HEARTBEAT_INTERVAL": "1"}
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service.running())
        await stack.enter_async_context(spawner_with(herd, home, installed, tmp_path / "log", **variables))
        yield


async def all_gone(person: Any, home: Path) -> None:
    """No sandbox is live, and no files of one are left in the folder of the guide's runtime."""
    await person.all_gone()
    await eventually(lambda: not list((home / "own-worker" / "sandboxes").iterdir()))


async def test_worker_in_node_does_what_a_worker_has_to(herd_of_node: None, person: Any, home: Path) -> None:
    """The worker in Node.js completes a task, fails as its program does, is stopped, and recovers."""
    for check in (check_completes_a_task, check_fails_as_its_program_does, check_is_stopped_and_recovers):
        await check(person, home)


async def check_completes_a_task(person: Any, home: Path) -> None:
    """Check that it joins, publishes heartbeats, takes a message once, waits for approval, stores output, and ends."""
    task, sandbox, approval = await begun(person, LONG_OUTPUT)
    await person.command(SendMessage(message=new_name("msg"), sandbox=sandbox, content=TEXT), sandbox)
    await person.receives(sandbox, "message.acknowledged")
    await person.receives(sandbox, "agent.message_injected")
    injected = person.event_data(sandbox, "agent.message_injected")
    assert (injected["content"], injected["content_length"]) == (TEXT, len(TEXT))
    await person.receives(sandbox, "agent.heartbeat")
    await answer(person, sandbox, approval, granted=True)
    view = await person.ended(task)
    assert view.state == "completed", view.error
    await check_artifact(person, sandbox)
    await check_history(person, sandbox)
    types = [kind for kind in person.types(sandbox) if kind.startswith("agent.") and kind != "agent.heartbeat"]
    assert types == [
        *("agent.started", "agent.approval_requested", "agent.message_injected", "agent.message_injected"),
        *("agent.completed", "agent.shutdown"),
    ]
    await all_gone(person, home)


async def check_fails_as_its_program_does(person: Any, home: Path) -> None:
    """Check the exit status: the program's, a shell's for an unknown program, and that of a denied approval."""
    for argv, granted, error in (
        (["sh", "-c", "exit 3"], True, "the program failed"),
        (["no-such-program"], True, "the program failed"),
        (["true"], False, "it was not approved"),
    ):
        task, sandbox, approval = await begun(person, argv)
        await answer(person, sandbox, approval, granted=granted)
        assert (await person.ended(task)).error == error
        await check_history(person, sandbox)
    await all_gone(person, home)


async def check_is_stopped_and_recovers(person: Any, home: Path) -> None:
    """Check that a cancelled task's worker ends by SIGTERM, and a killed one continues its sequence by `--recover`."""
    task, sandbox, _ = await begun(person, ["true"])
    await person.command(CancelTask(task=task), task)
    assert (await person.ended(task)).state == "cancelled"
    await check_history(person, sandbox)
    assert [kind for kind in person.types(sandbox) if kind in ENDS] == ENDS

    task, sandbox, _ = await begun(person, ["true"])
    kill_worker(sandbox)
    assert (await person.ended(task)).error_type == "worker_lost"
    await check_history(person, sandbox)
    assert [kind for kind in person.types(sandbox) if kind in ENDS] == ENDS
    await all_gone(person, home)
