"""The Conductor on a real broker: agents that hinder each other get one message each, whoever is restarted when."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.conductor.ledger_store import LedgerConflictError, Outbox
from monitor.conductor.summary import SandboxSummary
from sandherd.bus.connection import Bus
from sandherd.contracts.events.branch import BranchOverlap, BranchOverlapFound
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal

World = Any
CONFLICT, WITHDRAWN = "monitor.conflict_found", "monitor.finding_withdrawn"
BEGAN = datetime.now(UTC)


class Herd:
    """Sandboxes with agents that take messages, and the monitor that writes their summaries."""

    def __init__(self, world: World, monitor: Bus) -> None:
        self.world = world
        self.monitor = monitor

    async def agent(self, number: int, *paths: str, hears: bool = True, **fields: Any) -> str:
        name = f"sbx-{number}"
        if hears:
            await self.world.born(name)
            await self.world.hear(name)
        await self.summary(number, *paths, **fields)
        return name

    async def summary(self, number: int, *paths: str, **fields: Any) -> None:
        edits = [{"path": path, "ranges": [[1, 5]], "at": BEGAN} for path in paths]
        times = {"started_at": BEGAN + timedelta(seconds=number), "updated_at": BEGAN}
        about = {"repository": "https://git.example.org/demo/shop.git", "base": "main", "branch": f"feature/{number}"}
        found = SandboxSummary.model_validate(
            {"project": "default", "sandbox": f"sbx-{number}", "task": f"task-{number}", "edits": edits}
            | {**times, **about, **fields}
        )
        await self.monitor.js.publish(
            f"$KV.summaries.default.sbx-{number}", found.model_dump_json(exclude_defaults=True).encode()
        )

    def messages(self) -> list[str]:
        """The sandboxes that were sent a message, sorted."""
        return sorted(str(event["data"]["sandbox"]) for event in self.world.of("message.queued"))

    def found(self) -> list[tuple[str, str]]:
        return [(event["subject"], event["data"]["file_path"]) for event in self.world.of(CONFLICT)]


@pytest.fixture
async def herd_of_two(world: World) -> AsyncIterator[Herd]:
    async with world.herd.bus(Principal.MONITOR) as monitor:
        yield Herd(world, monitor)


async def test_two_agents_that_edit_one_file_get_one_message_each(world: World, herd_of_two: Herd) -> None:
    """Both are informed at once of who edits what. Restarts of the monitor at each step repeat nothing."""
    herd = herd_of_two
    async with world.relay().running():
        async with world.monitor().running():
            await herd.agent(1, "shop/cart.py")
            await herd.agent(2, "shop/cart.py")
            await world.until(lambda: len(world.heard) == 2)
        assert all('"shop/cart.py" (you: lines 1 to 5' in text for text in world.heard)
        async with world.monitor().running():
            await herd.summary(1, "shop/cart.py", turns=5)
            await herd.agent(3, "shop/cart.py", hears=False, state="paused")  # a conflict of which none is informed yet
            await world.until(lambda: len(herd.found()) == 3)
        await herd.summary(2, state="finished")
        async with world.monitor().running():
            await world.until(lambda: len(world.of(WITHDRAWN)) == 2)
        async with world.monitor().running():
            await herd.summary(3, state="ended")
            await world.until(lambda: len(world.of(WITHDRAWN)) == 3)
    assert sorted(herd.found()) == [("sbx-2", "shop/cart.py"), *[("sbx-3", "shop/cart.py")] * 2]
    assert [event["data"]["sender_id"] for event in world.of("message.queued")] == ["conductor"] * 2
    assert len(world.heard) == 2
    assert sorted(event["data"]["reason"] for event in world.of(WITHDRAWN)) == ["ended", "finished", "finished"]
    assert all(event["sandboxid"] == event["subject"] for event in world.of(CONFLICT))


async def test_a_crash_after_any_step_repeats_and_omits_nothing(
    world: World, herd_of_two: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Conductor is cut off after it has published each single event and command, before it could store that."""
    herd, publish, cut = herd_of_two, Outbox.publish, set[str]()

    async def cut_off(self: Outbox, project: str, output: Any, *, repeated: bool) -> None:
        await publish(self, project, output, repeated=repeated)
        if str(output.id) not in cut:
            cut.add(str(output.id))
            raise LedgerConflictError("cut off by the test")

    monkeypatch.setattr(Outbox, "publish", cut_off)
    async with world.relay().running(), world.monitor(conductor="ask").running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "a.py")
        await world.until(lambda: len(world.heard) == 2 and len(world.of("monitor.conductor_reported")) == 1)
        await herd.agent(3, "a.py", hears=False, state="paused")
        await world.until(lambda: len(herd.found()) == 3)
        await herd.summary(3, state="ended")
        await world.until(lambda: len(world.of(WITHDRAWN)) == 2)
    notified = [event["data"]["kind"] for event in world.of("monitor.notification_published")]
    assert len(herd.found()) == 3
    assert len(world.heard) == 2
    assert notified == ["coordination"] * 3
    assert len(world.of("message.queued")) == 2
    assert len(cut) >= 10


async def test_no_message_while_the_record_says_that_a_sandbox_stops(world: World, herd_of_two: Herd) -> None:
    """The spawner's record decides, also if the summary still has the sandbox running; later both are informed."""
    herd = herd_of_two
    async with world.relay().running(), world.monitor().running():
        await herd.agent(1, "a.py")
        await world.record("sbx-2", SandboxState.STOPPING)
        await herd.agent(2, "a.py", hears=False)
        await world.until(lambda: len(herd.found()) == 1)
        await herd.agent(3, "b.py")
        await herd.agent(4, "b.py")
        await world.until(lambda: len(world.heard) == 2)
        assert all('"b.py"' in text for text in world.heard)


async def test_trial_merges_raise_a_finding_and_the_later_one_is_paused(world: World, herd_of_two: Herd) -> None:
    """With `pause`: the later of two sandboxes whose branches can't be merged, once, and a user is notified."""
    herd = herd_of_two
    async with world.relay().running(), world.monitor(conductor="pause").running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "b.py")
        overlap = BranchOverlap(branch="feature/1", paths=["a.py"])
        found = BranchOverlapFound(
            repository="https://git.example.org/demo/shop", branch="feature/2", commit="c" * 40, overlaps=[overlap]
        )
        await world.by_spawner("task-2", "branch.overlap_found", **found.model_dump())
        await world.until(lambda: len(world.commands) == 1)
        assert (world.commands[0]["type"], world.commands[0]["data"]["sandbox"]) == ("spawner.pause_sandbox", "sbx-2")
        (event,) = world.of(CONFLICT)
        assert (event["data"]["severity"], event["data"]["other"]) == ("merge", "sbx-1")
        (notified,) = world.of("monitor.notification_published")
        assert notified["data"]["cause_id"] == event["id"] == event["data"]["finding_id"]


async def test_the_report_is_of_the_credentials_project(world: World, herd_of_two: Herd) -> None:
    """Any client may request it; with `off` there are no findings, and the mode states why."""
    herd = herd_of_two
    async with world.monitor(conductor="report").running():
        await herd.agent(1, "a.py")
        await herd.agent(2, "a.py", state="waiting")
        await world.until(lambda: len(herd.found()) == 1)
        report = json.loads(await world.client.request("sandherd.v1.request.monitor.report.default", b"{}"))["ok"]
        (one,) = report["projects"]
        assert (report["mode"], one["project"], one["coherence_score"], one["sandboxes"]) == (
            "report",
            "default",
            0.5,
            2,
        )
        assert [(view["sandbox"], view["file_path"]) for view in one["findings"]] == [("sbx-2", "a.py")]
        assert [(need["sandbox"], need["reason"]) for need in one["needs"]] == [("sbx-2", "waiting")]
        assert not world.heard
