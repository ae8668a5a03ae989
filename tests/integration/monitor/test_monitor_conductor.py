"""The Conductor on a real broker: agents that hinder each other get one message each, in spite of restarts."""

import json
from typing import Any

import pytest

from monitor.conductor.ledger_store import LedgerConflictError, Outbox
from sandherd.contracts.events.branch import BranchOverlap, BranchOverlapFound
from sandherd.contracts.states import SandboxState
from tests.polling import eventually

World = Any
RUNNING = SandboxState.RUNNING
CONFLICT, WITHDRAWN = "monitor.conflict_found", "monitor.finding_withdrawn"
REPOSITORY = "https://git.example.org/demo/shop"
DIFF = "@@ -1,4 +1,5 @@\n" + "+line\n" * 5


class Herd:
    """Sandboxes whose agents edit files of one repository and take messages."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def agent(self, number: int, *paths: str, paused: bool = False, state: SandboxState = RUNNING) -> None:
        name = f"sbx-{number}"
        await self.world.record(name, state, task=f"task-{number}")
        await self.by_spawner(number, "sandbox.requested")
        about = {"repository": f"{REPOSITORY}.git", "base": "main", "branch": f"feature/{number}"}
        started = {"sdk": "command", "task": "t", "task_description_length": 1}
        await self.by_worker(number, "agent.started", **started, **about)
        await self.world.receive(name)
        if paused:
            await self.by_spawner(number, "sandbox.paused")
        await self.edits(number, *paths)

    async def edits(self, number: int, *paths: str) -> None:
        for path in paths:
            edit = {"file_path": path, "change_type": "modified", "diff_preview": DIFF}
            await self.by_worker(number, "agent.file_edited", **edit)

    async def by_worker(self, number: int, event_type: str, **fields: Any) -> None:
        await self.world.by_worker(f"sbx-{number}", event_type, taskid=f"task-{number}", **fields)

    async def by_spawner(self, number: int, event_type: str, **fields: Any) -> None:
        await self.world.by_spawner(f"sbx-{number}", event_type, taskid=f"task-{number}", **fields)

    def found(self) -> list[tuple[str, str]]:
        return [(event["subject"], event["data"]["file_path"]) for event in self.world.of(CONFLICT)]


@pytest.fixture
def herd_of_agents(world: World) -> Herd:
    return Herd(world)


async def test_two_agents_that_edit_one_file_get_one_message_each(world: World, herd_of_agents: Herd) -> None:
    """Both agents get a message about who edits what. Restarts of the monitor at each step repeat nothing."""
    herd = herd_of_agents
    async with world.relay().running():
        async with world.monitor().running():
            await herd.agent(1, "shop/cart.py")
            await herd.agent(2, "shop/cart.py")
            await world.until(lambda: len(world.received) == 2)
        assert all('"shop/cart.py" (you: lines 1 to 5' in text for text in world.received)
        async with world.monitor().running():
            await herd.edits(1, "shop/cart.py")
            await herd.agent(3, "shop/cart.py", paused=True)
            await world.until(lambda: len(herd.found()) == 3)
        await herd.by_worker(2, "agent.completed")
        async with world.monitor().running():
            await world.until(lambda: len(world.of(WITHDRAWN)) == 2)
        async with world.monitor().running():
            await herd.by_spawner(3, "sandbox.terminated", reason="completed")
            await world.until(lambda: len(world.of(WITHDRAWN)) == 3)
    assert sorted(herd.found()) == [("sbx-2", "shop/cart.py"), *[("sbx-3", "shop/cart.py")] * 2]
    assert [event["data"]["sender_id"] for event in world.of("message.queued")] == ["conductor"] * 2
    assert len(world.received) == 2
    assert sorted(event["data"]["reason"] for event in world.of(WITHDRAWN)) == ["ended", "finished", "finished"]
    assert all(event["sandboxid"] == event["subject"] for event in world.of(CONFLICT))


async def test_a_crash_after_any_step_repeats_and_omits_nothing(
    world: World, herd_of_agents: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is repeated or omitted if the Conductor is killed after any event or command, before it stored that."""
    herd, publish, cut = herd_of_agents, Outbox.publish, set[str]()

    async def cut_off(self: Outbox, project: str, output: Any, *, repeated: bool) -> None:
        await publish(self, project, output, repeated=repeated)
        if str(output.id) not in cut:
            cut.add(str(output.id))
            raise LedgerConflictError("cut off by the test")

    monkeypatch.setattr(Outbox, "publish", cut_off)
    async with world.relay().running(), world.monitor(conductor="ask").running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "a.py")
        await world.until(lambda: len(world.received) == 2 and len(world.of("monitor.conductor_reported")) == 1)
        await herd.agent(3, "a.py", paused=True)
        await world.until(lambda: len(herd.found()) == 3)
        await herd.by_spawner(3, "sandbox.terminated", reason="completed")
        await world.until(lambda: len(world.of(WITHDRAWN)) == 2)
    notified = [event["data"]["kind"] for event in world.of("monitor.notification_published")]
    assert len(herd.found()) == 3
    assert len(world.received) == 2
    assert notified == ["coordination"] * 3
    assert len(world.of("message.queued")) == 2
    published = [event for event in world.published if event["type"].startswith("monitor.")]
    assert sorted(event["sequence"] for event in published) == list(range(1, len(published) + 1))  # no gap
    assert len(cut) >= 10


async def test_no_message_while_the_record_says_that_a_sandbox_stops(world: World, herd_of_agents: Herd) -> None:
    """A record that says stopping prevents a message, also if the summary is still running; later both get one."""
    herd = herd_of_agents
    async with world.relay().running(), world.monitor().running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "a.py", state=SandboxState.STOPPING)
        await world.until(lambda: len(herd.found()) == 1)
        await herd.agent(3, "b.py")
        await herd.agent(4, "b.py")
        await world.until(lambda: len(world.received) == 2)
        assert all('"b.py"' in text for text in world.received)


async def test_trial_merges_raise_a_finding_and_the_later_one_is_paused(world: World, herd_of_agents: Herd) -> None:
    """With `pause` the later of two sandboxes whose branches can't be merged is paused once, and a user is notified."""
    herd = herd_of_agents
    async with world.relay().running(), world.monitor(conductor="pause").running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "b.py")
        overlap = BranchOverlap(branch="feature/1", paths=["a.py"])
        found = BranchOverlapFound(repository=REPOSITORY, branch="feature/2", commit="c" * 40, overlaps=[overlap])
        await world.by_spawner("task-2", "branch.overlap_found", **found.model_dump())
        await world.until(lambda: len(world.commands) == 1)
        assert (world.commands[0]["type"], world.commands[0]["data"]["sandbox"]) == ("spawner.pause_sandbox", "sbx-2")
        (event,) = world.of(CONFLICT)
        assert (event["data"]["severity"], event["data"]["other"]) == ("merge", "sbx-1")
        (notified,) = world.of("monitor.notification_published")
        assert notified["data"]["cause_id"] == event["id"] == event["data"]["finding_id"]


async def test_the_report_is_of_the_credentials_project(world: World, herd_of_agents: Herd) -> None:
    """Any client may request the report of its project; with `off` it has no findings, and the mode states why."""
    herd = herd_of_agents
    async with world.monitor(conductor="report").running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "a.py")
        await herd.by_worker(2, "agent.waiting")
        await world.until(lambda: len(herd.found()) == 1)

        async def reported() -> Any:
            report = json.loads(await world.client.request("sandherd.v1.request.monitor.report.default", b"{}"))["ok"]
            return report if report["projects"][0]["needs"] else None

        report = await eventually(reported)
        (one,) = report["projects"]
        assert (report["mode"], one["project"], one["coherence_score"], one["sandboxes"]) == (
            "report",
            "default",
            0.5,
            2,
        )
        assert [(view["sandbox"], view["file_path"]) for view in one["findings"]] == [("sbx-2", "a.py")]
        assert [(need["sandbox"], need["reason"]) for need in one["needs"]] == [("sbx-2", "waiting")]
        assert not world.received
