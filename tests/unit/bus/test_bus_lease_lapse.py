"""A lease that lapses while its renewal is under way."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandherd.bus import lease as module
from sandherd.bus.lease import Lease


class SlowBroker:
    """Stores each renewal; its reply takes as long as requested."""

    def __init__(self) -> None:
        self.now, self.takes, self.seq = 100.0, 0.0, 0
        self.js = self

    async def publish(self, *_arguments: Any, **_options: Any) -> Any:
        """The next revision."""
        self.now += self.takes
        self.seq += 1
        return SimpleNamespace(seq=self.seq)


async def test_lease_that_lapsed_before_its_renewal_was_acknowledged_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that was given up meanwhile is found by the new fence; a renewal in time changes no fence."""
    broker = SlowBroker()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: broker.now))
    held = Lease(cast("Any", broker), "spawner.test", "me", ttl=5.0)
    await held._write(0, acquired=True)
    broker.now += 3
    await held._try_once()
    assert (held.held, held.fence) == (True, 1)
    broker.now += 3
    broker.takes = 1.5
    await held._try_once()
    assert (held.held, held.fence) == (True, 3)


@pytest.mark.parametrize(("ttl", "interval"), [(5.0, 1.5), (3.0, 1.0), (1.0, 1 / 3)])
def test_lease_is_renewed_three_times_in_its_time_to_live(ttl: float, interval: float) -> None:
    """Also if its time to live has no third that is a multiple of half a second."""
    assert module._renewal_interval(ttl) == pytest.approx(interval)
    assert module._renewal_interval(ttl) <= ttl / 3
