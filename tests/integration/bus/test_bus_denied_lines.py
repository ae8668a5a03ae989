"""The broker's refusals of a process's messages fill its log with at most one line a minute."""

import pytest

from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry import logs
from tests.patience import PATIENCE
from tests.polling import eventually

DENIED = 500


async def test_denied_messages_are_counted_and_logged_once(herd: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    """Hundreds of refused replies, each with its own subject, are logged as one line; another subject has a line."""
    logs.configure("test", "info")
    async with herd.bus(Principal.MONITOR) as bus:
        for number in range(DENIED):
            await bus.client.publish(f"_R_.someone.{number}", b"{}")
        await bus.client.publish("$KV.tasks.p1.task-1", b"{}")
        await bus.flush(timeout=PATIENCE)
        await eventually(lambda: bus.violations == DENIED + 1)
    lines = [line for line in capfd.readouterr().err.splitlines() if "broker denied permission" in line]
    assert ["_r_." in line for line in lines] == [True, False]
