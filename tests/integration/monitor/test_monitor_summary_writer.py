"""Summaries of sandboxes in their bucket, across monitors that stop and start."""

from typing import Any

from sandherd.bus.kv import read_record
from sandherd.contracts.records import SandboxSummary
from sandherd.contracts.subjects import Principal
from tests.polling import eventually

World = Any


async def test_summary_follows_its_sandbox_across_a_restart(world: World) -> None:
    """Usage before and after a restart of the monitor is in the summary once, and so is an end during the restart."""
    async with world.herd.bus(Principal.MONITOR) as bus:

        async def summary() -> SandboxSummary | None:
            return await read_record(bus, SandboxSummary, "default", "sbx-1")

        async def until(state: str, tokens: int) -> SandboxSummary:
            async def reached() -> SandboxSummary | None:
                found = await summary()
                fits = found is not None and (found.state, found.spending.tokens) == (state, tokens)
                return found if fits else None

            found: SandboxSummary = await eventually(reached)
            return found

        await world.born("sbx-1")
        await world.by_worker("sbx-1", "agent.usage", input_tokens=4, cost_micro_usd=10)
        async with world.monitor().running():
            first = await until("running", 4)
        await world.by_worker("sbx-1", "agent.usage", output_tokens=3)
        await world.by_worker("sbx-1", "agent.file_edited", file_path="a.py", change_type="created")
        async with world.monitor().running():
            second = await until("running", 7)
        await world.by_spawner("sbx-1", "sandbox.terminated", reason="completed")
        async with world.monitor().running():
            last = await until("ended", 7)
        stored = await bus.js.get_last_msg("KV_summaries", "$KV.summaries.default.sbx-1")
    assert (first.task, first.harness, first.title) == ("task-1", "command", "t")
    assert [edit.path for edit in second.edits] == ["a.py"]
    assert first.sequence < second.sequence < last.sequence
    assert (stored.headers or {})["Nats-TTL"] == "604800s"
