"""A rule raises while a real broker delivers events: it is reported once, and the monitor continues."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from monitor.rules import flooding, loop

World = Any


async def test_failing_rules_are_reported_once_and_others_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that raises in its fold, and one in its decision, are logged and counted; the sandbox is still ended."""

    def fail(*_arguments: object) -> None:
        raise RuntimeError("hostile text")

    monkeypatch.setattr(loop.Loop, "fold", fail)
    monkeypatch.setattr(flooding.Flood, "evaluate", fail)
    with capture_logs() as lines:
        async with world.monitor(dead_after=0.5).running() as service:
            await world.born("sbx-1")
            for number in range(4):
                await world.call("sbx-1", str(number))
            await world.until(lambda: world.requested("sbx-1"))
            counted = {
                rule: service.registry.get_sample_value("sandherd_rules_disabled_total", {"rule": rule})
                for rule in ("flooding", "loop")
            }
    reported = [line for line in lines if line["event"] == "rule failed, disabled for the sandbox"]
    assert sorted((line["rule"], line["sandbox"], line["reason"].partition(" (")[0]) for line in reported) == [
        ("flooding", "sbx-1", "decision: RuntimeError"),
        ("loop", "sbx-1", "fold: RuntimeError"),
    ]
    assert "hostile" not in str(reported)
    assert counted == {"flooding": 1, "loop": 1}
    assert world.requested("sbx-1") == ["dead"]
    assert world.of("monitor.guardian_analysed") == []
