"""How long one project's flood delays another's work: the thresholds of `make bench ONLY=floods,requests`.

Times depend on the machine, so `make test` asserts the order instead: tests/integration/spawner/test_spawner_floods.py
and tests/integration/event_ingest/test_ingest_fairness.py.
"""

import pytest

from sandherd.telemetry import logs
from tests.bench.flood import CUT_OFF, measure_attack, projects
from tests.bench.ingest import Bench
from tests.bench.latency import latency_of
from tests.bench.request_fairness import FLOODS, SAMPLES, during, request_loop

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
DELAYED_BY = 5.0
"""Seconds; also the maximum time until a flooding sandbox is cut off."""
TIMES_IDLE = 2.0
MESSAGE_P99 = 50.0
REQUEST_P99 = 200.0
"""Milliseconds."""


@pytest.mark.parametrize("attack", ["junk", "relay"])
async def test_flood_delays_another_project_by_seconds_at_most(attack: str) -> None:
    """5,000 one-byte messages, or 3,000 approvals and messages, are sent with a worker's real credential.

    Another project's work is delayed by at most 5 s, and the sandbox is cut off within 5 s if it exceeded a limit.
    Afterwards a task takes at most twice its idle time, and messages are delivered within 50 ms (p99).
    """
    logs.configure("test", "warning")
    async with projects() as at:
        found = await measure_attack(at, attack)
    assert found.delay <= DELAYED_BY, found
    if attack in CUT_OFF:
        assert found.cut_off is not None, found
        assert found.cut_off <= DELAYED_BY, found
    assert found.after <= TIMES_IDLE * found.idle, found
    assert found.messages_after.p99 < MESSAGE_P99, found


async def test_flood_of_requests_delays_another_projects_by_under_200_ms() -> None:
    """1,000 `events`, 300 `audit` or 200 `trajectory` requests raise another project's p99 by less than 200 ms."""
    found = {}
    async with Bench.open() as bench, request_loop(bench) as ask:
        idle = latency_of([await ask() for _ in range(SAMPLES)])
        for name, (request, count) in FLOODS.items():
            found[name] = (await during(bench, ask, request, count)).p99 - idle.p99
    assert max(found.values()) < REQUEST_P99, (found, idle)
