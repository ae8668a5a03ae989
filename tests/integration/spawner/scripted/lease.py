"""Leases that a history passes from one spawner to another. What they promise is proven where the real one is.

The one before knows at once, as it does by its own clock; but what it had begun goes on.
"""

from typing import Any

from sandherd.bus.lease import LeaseLostError
from tests.integration.spawner.scripted.gate import Gate


class Leases:
    """Who holds each lease, and with which fencing token."""

    def __init__(self) -> None:
        self._holders: dict[str, ScriptedLease] = {}
        self._fence = 0

    def give(self, lease: "ScriptedLease") -> None:
        """From now on this one holds it."""
        if self._holders.get(lease.key) is not lease:
            self._fence += 1
            self._holders[lease.key], lease.fence = lease, self._fence

    def holds(self, lease: "ScriptedLease") -> bool:
        """Whether this one does."""
        return self._holders.get(lease.key) is lease


class ScriptedLease:
    """One spawner's side of a lease."""

    def __init__(self, leases: Leases, key: str, gate: Gate) -> None:
        self._leases = leases
        self._gate = gate
        self.key = key
        self.fence = 0

    @property
    def held(self) -> bool:
        return self._leases.holds(self) and not self._gate.dead

    def check(self) -> None:
        if not self.held:
            raise LeaseLostError(self.key)

    def problem(self) -> str | None:
        return None

    def take(self) -> None:
        """The one before has not renewed it, or has given it back."""
        self._leases.give(self)

    async def wait_held(self) -> None:
        async def look() -> Any:
            return None

        await self._gate.act("lease", look)
        self.check()
