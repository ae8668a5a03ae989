"""Several spawners: one that was suspended for longer than its lease can't act with its old token."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from sandherd.contracts.commands import CancelTask
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.spawner_environment import environment
from tests.preloaded_cli import preloaded_python

DYING = Path(__file__).with_name("dying_spawner.py")
Start = Callable[..., Awaitable["Replica"]]

MORE_ACTS = (12, 21, "after ProcessRuntime.stop")
"""Acts at which only `make soak` stops a replica: each takes the length of a lease, and the checks are the same."""


class Replica:
    """A spawner in a separate process, and its log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        """The process id of the spawner, which is a child of `process`."""
        return int(self.log.split(maxsplit=2)[1])

    @property
    def stands_still(self) -> bool:
        """Whether it has begun, and is stopped (SIGSTOP)."""
        if not self.log:
            return False
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def measured(self, name: str, **labels: str) -> float:
        """The sum of one of its metrics over all labels; 0 before it is up."""
        port = re.search(r'"http_port": (\d+)', self.log)
        if port is None:
            return 0
        async with ClientSession() as web, web.get(f"http://127.0.0.1:{port[1]}/metrics") as page:
            families = text_string_to_metric_families(await page.text())
            samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@pytest.fixture
async def start(herd: Broker, home: Path, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts spawners with a lease of one second; each stops itself at its act `stops_at` (0: none)."""
    started: list[Replica] = []
    settings = herd.settings(Principal.SPAWNER, home=home, check_interval=0.2, stop_grace=5, max_attempts=1)

    async def start_it(stops_at: int | str = 0) -> Replica:
        path = tmp_path / f"log-{len(started)}"
        with path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                preloaded_python(), str(DYING), str(stops_at), "STOP", env=environment(settings), stderr=log
            )
        started.append(Replica(process, path))
        return started[-1]

    yield start_it
    for replica in started:
        if replica.process.returncode is None:
            replica.process.kill()
            await replica.process.wait()


@pytest.mark.faults
@pytest.mark.parametrize(
    "act",
    [7, 15, "before Revoker.revoke", *(pytest.param(act, marks=pytest.mark.long) for act in MORE_ACTS)],
)
async def test_suspended_replica_cannot_act(start: Start, person: Any, act: int | str) -> None:
    """A replica stopped at any act for longer than its lease finds another leader on its return; nothing is duplicated.

    There are 26 acts before its agent runs, and over a hundred in all; the end of the sandbox has no fixed numbers.
    """
    stopped = await start(act)
    task = await person.submit(["/bin/sh", "-c", "echo done > done"])
    await person.eventually(lambda: stopped.stands_still)
    second = await start()
    view = await person.ended(task)
    assert view.state == "completed", second.log[-3000:]
    await person.all_gone()
    stopped.go_on()
    after = await person.submit(["true"])
    assert (await person.ended(after)).state == "completed"
    await person.all_gone()
    await person.receives(view.sandbox, "sandbox.terminated")
    assert stopped.process.returncode is None, stopped.log[-3000:]
    stopped.process.send_signal(signal.SIGTERM)
    assert await stopped.process.wait() == 0, stopped.log[-3000:]
    person.check_sequences()
    kinds = [event["type"] for event in person.unique() if event["subject"] in {task, view.sandbox}]
    for kind in ("task.assigned", "task.completed", "sandbox.requested", "agent.started", "sandbox.terminated"):
        assert kinds.count(kind) == 1, kinds


@pytest.mark.faults
async def test_sandbox_ended_by_another_replica_stays_ended(start: Start, person: Any) -> None:
    """A replica that was suspended while a task ran does not restore what another has ended since."""
    first = await start()
    task = await person.submit(["/bin/sh", "-c", "touch up; exec sleep 600"])
    sandbox = (await person.reaches(task, "running")).sandbox
    os.kill(first.pid, signal.SIGSTOP)
    await person.eventually(lambda: first.stands_still)
    second = await start()
    await person.command(CancelTask(task=task), task)
    assert (await person.ended(task)).state == "cancelled", second.log[-3000:]
    await person.all_gone()
    first.go_on()
    assert (await person.ended(await person.submit(["true"]))).state == "completed"
    await person.all_gone()
    await person.receives(sandbox, "sandbox.terminated")
    first.process.send_signal(signal.SIGTERM)
    assert await first.process.wait() == 0, first.log[-3000:]
    person.check_sequences()
    assert person.types(sandbox).count("agent.started") == 1


@pytest.mark.faults
async def test_two_replicas_share_the_work(start: Start, person: Any) -> None:
    """Both replicas process commands; each task runs once, and after a kill of the leader the other continues."""
    replicas = [await start(), await start()]
    tasks: list[str] = []

    async def both_have_taken_some() -> bool:
        tasks.append(await person.submit(["true"]))
        await person.ended(tasks[-1])
        return all([await taken(replica) for replica in replicas])

    await person.eventually(both_have_taken_some)
    tasks += [await person.submit(["/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]) for _ in range(3)]
    waiting = [await person.reaches(task, "running") for task in tasks[-3:]]
    assigned = [await replica.measured("sandherd_task_wait_seconds_count") for replica in replicas]
    assert max(assigned) > 0
    leader, other = replicas if assigned[0] > assigned[1] else reversed(replicas)
    leader.process.kill()
    await leader.process.wait()
    for view in waiting:
        (person.home / "sandboxes" / view.sandbox / "work" / "go").touch()
    tasks.append(await person.submit(["true"]))
    views = [await person.ended(task) for task in tasks]
    assert {view.state for view in views} == {"completed"}, other.log[-3000:]
    assert await other.measured("sandherd_task_wait_seconds_count") > min(assigned)
    await person.all_gone()
    for view in views:
        await person.receives(view.sandbox, "sandbox.terminated")
        assert len([e for e in person.unique() if e["subject"] == view.sandbox and e["type"] == "agent.started"]) == 1
    person.check_sequences()


async def taken(replica: Replica) -> float:
    """The number of commands that it has processed."""
    return await replica.measured("sandherd_deliveries_total", consumer="spawner-commands", outcome="done")
