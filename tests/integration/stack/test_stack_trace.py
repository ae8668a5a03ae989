"""A stack that exports to a collector does not wait for it, and a trace has each span once."""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.errors import Code
from sandherd.service.request_spans import SLOW_SECONDS
from sandherd.stack.control import down, up
from tests.doubles.otlp.receiver import Collector, collecting
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
                        # Exports get no response: at some moment a request hangs.
                        while (audit := await herd.audit()).unstored or not collector.held:
                            await asyncio.sleep(0.05)
                assert (audit.missing, audit.dead, audit.conflicts) == (0, 0, 0)
            finally:
                await down(Path(directory))
            assert collector.spans == []


async def test_spans_of_a_retried_task_have_their_own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each span of a task that is cancelled and retried twice has its own id and an exported parent.

    The collector rejects nothing, so it has each span as often as it was recorded. Of requests, which belong to no
    trace here, only slow ones have spans.
    """
    with tempfile.TemporaryDirectory(prefix="retried-") as directory:
        async with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
            monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
            monkeypatch.setenv("SANDHERD_TRACED_REQUESTS", "0")
            await up(Path(directory))
            try:
                async with Herd.connect(Context.resolve(home=Path(directory), environ={})) as herd:
                    await cancelled_three_times(herd)
                await exported(collector, task=3, sandbox=3, **{"invoke_agent command": 3})
            finally:
                await down(Path(directory))
    requests = [span for span in collector.spans if span.name.startswith("answer ")]
    assert [span for span in requests if span.ended - span.begun <= SLOW_SECONDS * 10**9] == []
    ids = [(span.trace, span.span) for span in collector.spans]
    assert [span for span, times in Counter(ids).items() if times > 1] == []
    orphans = [(s.service, s.name) for s in collector.spans if s.parent and (s.trace, s.parent) not in ids]
    assert orphans == []
    first, second, third = sorted((s for s in collector.spans if s.name == "task"), key=lambda span: span.begun)
    assert (first.parent, second.parent, third.parent) == ("", first.span, second.span)
    assert first.ended <= second.begun <= second.ended <= third.begun
    boxes = {span.parent: span.span for span in collector.spans if span.name == "sandbox"}
    agents = {span.parent for span in collector.spans if span.name == "invoke_agent command"}
    assert boxes.keys() == {first.span, second.span, third.span}
    assert agents == set(boxes.values())


async def cancelled_three_times(herd: Herd) -> None:
    task = await herd.submit("wait", ["sleep", "3600"])
    for retry in (False, True, True):
        if retry:
            await herd.retry(task, timeout=PATIENCE)
        await reached(herd, task, "running")
        await herd.cancel(task)
        await reached(herd, task, "cancelled")


async def reached(herd: Herd, task: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await state_of(herd, task) != state:
            await asyncio.sleep(0.05)


async def state_of(herd: Herd, task: str) -> str | None:
    """The state of a task; None if the spawner has not received the command yet."""
    try:
        return (await herd.task(task)).state
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        return None


async def exported(collector: Collector, **wanted: int) -> None:
    """Wait until there is this number of spans with these names."""
    async with asyncio.timeout(PATIENCE):
        while not Counter(wanted) <= Counter(span.name for span in collector.spans):
            await asyncio.sleep(0.05)
