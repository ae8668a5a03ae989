"""Answers `spawner.prune`: compares all records with all runtimes on request.

It needs no lease. It removes only what no record needs, as checked in the bucket immediately before; a sandbox's name
is never reused, so no later record can need it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Orphan, Prune, PruneResult, SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.service.service import IncomingRequest
from spawner.live_state import LiveState
from spawner.records.base_record import IndexEntry
from spawner.runtimes.contract import ObservedSandbox, Runtime
from spawner.sandboxes.inventory import RuntimeInventory, list_runtimes
from spawner.sandboxes.orphans import OrphanCollector
from spawner.sandboxes.sweep import lost, units

_TIMEOUT: Final = 10.0


class PruneHandler:
    """Compares, reports, and removes on request. `wake` reconciles lost sandboxes, if this replica holds the lease."""

    def __init__(
        self,
        live: LiveState,
        runtimes: Mapping[str, Runtime],
        collector: OrphanCollector,
        wake: Callable[[str], None],
    ) -> None:
        self._live = live
        self._runtimes = runtimes
        self._collector = collector
        self._wake = wake

    async def prune(self, incoming: IncomingRequest[Prune]) -> PruneResult:
        """Compare existing sandboxes with the records. A project sees only its own sandboxes."""
        # Listed before the records: everything that is created in between has a record.
        inventory = await list_runtimes(self._runtimes, _TIMEOUT)
        await self._live.catch_up()
        sandboxes = dict(self._live.sandbox_index.items())
        in_project = {key: known for key, known in sandboxes.items() if incoming.project in {FLEET, known.view.project}}
        answered = {key: known for key, known in in_project.items() if known.view.runtime not in inventory.silent}
        missing = lost(answered, inventory.units.keys())
        for key in missing:
            self._wake(key)
        return PruneResult(
            present=sum(_is_of(incoming.project, seen) for seen in inventory.sandboxes),
            records=sum(known.view.state not in SANDBOX_ENDED for known in in_project.values()),
            orphans=await self._orphans(incoming, inventory, sandboxes),
            lost=sorted(sandboxes[key].view.sandbox for key in missing),
        )

    async def _orphans(
        self,
        incoming: IncomingRequest[Prune],
        inventory: RuntimeInventory,
        sandboxes: Mapping[str, IndexEntry[SandboxView]],
    ) -> list[Orphan]:
        found = []
        now = self._live.now()
        for unit in sorted(inventory.units.keys() - units(sandboxes).keys()):
            runtime, seen = inventory.units[unit]
            if not _is_of(incoming.project, seen) or not await self._collector.unwanted(seen):
                continue
            await self._collector.report(runtime, seen, now)
            if incoming.request.now:
                await self._collector.remove(runtime, seen, now)
            found.append(Orphan(sandbox=unit, runtime=runtime.name, removed=incoming.request.now))
        return found


def _is_of(project: str, seen: ObservedSandbox) -> bool:
    return project in {FLEET, seen.project}
