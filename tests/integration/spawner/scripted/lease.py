"""Leases that a history passes from one spawner to another. The tests of the real lease prove what leases promise.

The former holder knows at once that it has lost the lease, as it would by its own clock; what it had begun continues.
"""

from typing import Any

from sandherd.bus.lease import LeaseLostError
from tests.integration.spawner.scripted.gate import Gate


class Leases:
    """The holder of each lease, and its fencing token."""

    def __init__(self) -> None:
        self._holders: dict[str, ScriptedLease] = {}
        self._fence = 0

    def give(self, lease: "ScriptedLease") -> None:
        """Give the lease to this spawner."""
        if self._holders.get(lease.key) is not lease:
            self._fence += 1
            self._holders[lease.key], lease.fence = lease, self._fence

    def holds(self, lease: "ScriptedLease") -> bool:
        """Whether this spawner holds the lease."""
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
        """Take the lease, as when the former holder has not renewed it or has given it back."""
        self._leases.give(self)

    async def wait_held(self) -> None:
        async def look() -> Any:
            return None

        await self._gate.act("lease", look)
        self.check()
