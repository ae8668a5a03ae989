"""A stack whose collector hangs: nothing waits for it, and no event is lost."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from sandherd.client import Context, Herd
from sandherd.stack.control import down, up
from tests.doubles.otlp.receiver import collecting
from tests.patience import PATIENCE


async def test_hanging_collector_loses_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task completes with its whole history while every export hangs; then the stack stops with status 0."""
    with tempfile.TemporaryDirectory(prefix="hangs-") as directory:
        async with collecting("hangs") as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
            monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
            monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
            await up(Path(directory))
            try:
                async with Herd.connect(Context.resolve(home=Path(directory), environ={})) as herd:
                    task = await herd.submit("say hello", ["echo", "hello"])
                    ended = await asyncio.wait_for(herd.wait(task), PATIENCE)
                    assert ended.state == "completed"
                    async with asyncio.timeout(PATIENCE):
                        # What is exported is not answered: at some moment something is kept waiting.
                        while (audit := await herd.audit()).unstored or not collector.held:
                            await asyncio.sleep(0.05)
                assert (audit.missing, audit.dead, audit.conflicts) == (0, 0, 0)
            finally:
                await down(Path(directory))
            assert collector.spans == []
