"""The spawner and a worker while EVENTS is full: their events wait, and none is lost."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import Bus, StreamFullError
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.live_files import holding

pytestmark = pytest.mark.own_broker

Spawner = Callable[..., Service]
FLOOD = "sandherd.v1.event.p1.sbx-mad.agent.message"


@pytest.fixture
async def small(herd: Broker) -> Broker:
    """The broker, with little space for events."""
    async with herd.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM["EVENTS"], max_bytes=1024 * 1024)))
    return herd


async def fill_up(bus: Bus) -> None:
    """Flood EVENTS until not even the smallest event fits."""
    for size in (200_000, 1000, 1):
        with suppress(StreamFullError):
            for number in range(100_000):
                msg_id = f"flood-{bus.name}-{size}-{number}"
                await bus.publish_stored(FLOOD, b"x" * size, msg_id=msg_id, while_full=False)


async def give_space(herd: Broker) -> None:
    async with herd.provisioner() as jetstream:
        await jetstream.purge_stream("EVENTS", subject=FLOOD)


async def on_record(person: Any, task: str) -> Any:
    """Wait until the spawner knows the task, in any state."""
    return await person.eventually(lambda: person.try_task(task))


def was_refused(place: Path) -> bool:
    """Whether the worker of this sandbox has logged that there was no space."""
    return any(path.name.endswith("log") for path in holding(b"maximum bytes exceeded", place))


async def test_task_submitted_into_a_full_stream_is_done_later(small: Broker, spawner: Spawner, person: Any) -> None:
    """The record of a task submitted into a full stream has its events at once; with space all are published once."""
    async with small.bus(Principal.WORKER, project="p1", sandbox="sbx-mad") as flooder, spawner().running():
        await fill_up(flooder)
        task = await person.submit(["true"])
        assert (await on_record(person, task)).submitted_at
        assert person.types(task) == []
        await give_space(small)
        assert (await person.ended(task)).state == "completed"
        await person.receives(task, "task.completed")
        assert person.types(task)[0] == "task.submitted"
        person.check_sequences()


async def test_spawner_that_dies_at_a_full_stream_publishes_later(small: Broker, spawner: Spawner, person: Any) -> None:
    """Unpublished events are in the record: the next spawner publishes them once there is space."""
    async with small.bus(Principal.WORKER, project="p1", sandbox="sbx-mad") as flooder:
        await fill_up(flooder)
        async with spawner().running():
            task = await person.submit(["true"])
            await on_record(person, task)
        await give_space(small)
        async with spawner().running():
            assert (await person.ended(task)).state == "completed"
            await person.receives(task, "task.completed")
            person.check_sequences()


async def test_events_of_a_worker_wait_in_its_spool(small: Broker, spawner: Spawner, person: Any) -> None:
    """If an agent ends while the stream is full, its events and the task's end follow once there is space."""
    waits = "while [ ! -e go ]; do sleep 0.05; done"
    async with small.bus(Principal.WORKER, project="p1", sandbox="sbx-mad") as flooder, spawner().running():
        task = await person.submit(["sh", "-c", waits])
        sandbox = (await person.reaches(task, "running")).sandbox
        await person.receives(sandbox, "agent.tool_use")
        await fill_up(flooder)
        place = person.home / "sandboxes" / sandbox
        (place / "work" / "go").touch()
        await person.eventually(lambda: was_refused(place))
        assert "agent.completed" not in person.types(sandbox)
        await give_space(small)
        assert (await person.ended(task)).state == "completed"
        await person.receives(sandbox, "agent.completed")
        await person.receives(task, "task.completed")
        person.check_sequences()


async def test_sandbox_is_ended_while_the_stream_is_full(small: Broker, spawner: Spawner, person: Any) -> None:
    """The sandbox's processes end without waiting for the event, which is published later, without a gap."""
    async with (
        small.bus(Principal.WORKER, project="p1", sandbox="sbx-mad") as flooder,
        spawner(isolation="none").running(),
    ):
        task = await person.submit(["sh", "-c", "echo $$ > pid; exec sleep 600"])
        sandbox = (await person.reaches(task, "running")).sandbox
        written = person.home / "sandboxes" / sandbox / "work" / "pid"
        agent = Path("/proc", (await person.eventually(lambda: written.exists() and written.read_text())).strip())
        await person.receives(sandbox, "sandbox.running")
        await fill_up(flooder)
        await person.command(TerminateSandbox(sandbox=sandbox, reason="enough"), sandbox)
        await person.eventually(lambda: not agent.exists())
        assert "sandbox.stopping" not in person.types(sandbox)
        await give_space(small)
        await person.receives(sandbox, "sandbox.terminated")
        person.check_sequences()
