"""Answers `spawner.prune`: a look at all records and all runtimes, when somebody asks for it.

It needs no lease. What it removes no record wants, which is looked up in the bucket itself just before; a sandbox's
name never comes again, so none will.
"""

from collections.abc import Callable, Mapping
from typing import Final

from sandherd.bus.service import Asked
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Orphan, Prune, Pruned, SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from spawner.live import Live
from spawner.records.known import Known
from spawner.runtimes.contract import Runtime, Seen
from spawner.sandboxes.looking import There, look_at_all
from spawner.sandboxes.orphans import Ward
from spawner.sandboxes.sweep import lost, units

_TIMEOUT: Final = 10.0


class Pruning:
    """Compares, reports, and removes on request. `wake` has the lost ones led on, where this replica leads."""

    def __init__(self, live: Live, runtimes: Mapping[str, Runtime], ward: Ward, wake: Callable[[str], None]) -> None:
        self._live = live
        self._runtimes = runtimes
        self._ward = ward
        self._wake = wake

    async def prune(self, asked: Asked[Prune]) -> Pruned:
        """What is there and what should be. A project is told of its own."""
        # Looked at before the records are: whatever is made in between has a record by then.
        there = await look_at_all(self._runtimes, _TIMEOUT)
        await self._live.catch_up()
        sandboxes = dict(self._live.sandbox_index.items())
        ours = {key: known for key, known in sandboxes.items() if asked.project in {FLEET, known.view.project}}
        answered = {key: known for key, known in ours.items() if known.view.runtime not in there.silent}
        gone = lost(answered, there.units.keys())
        for key in gone:
            self._wake(key)
        return Pruned(
            present=sum(_is_of(asked.project, seen) for seen in there.seen),
            records=sum(known.view.state not in SANDBOX_ENDED for known in ours.values()),
            orphans=await self._orphans(asked, there, sandboxes),
            lost=sorted(sandboxes[key].view.sandbox for key in gone),
        )

    async def _orphans(
        self, asked: Asked[Prune], there: There, sandboxes: Mapping[str, Known[SandboxView]]
    ) -> list[Orphan]:
        found = []
        now = self._live.now()
        for unit in sorted(there.units.keys() - units(sandboxes).keys()):
            runtime, seen = there.units[unit]
            if not _is_of(asked.project, seen) or not await self._ward.unwanted(seen):
                continue
            await self._ward.report(runtime, seen, now)
            if asked.request.now:
                await self._ward.remove(runtime, seen, now)
            found.append(Orphan(sandbox=unit, runtime=runtime.name, removed=asked.request.now))
        return found


def _is_of(project: str, seen: Seen) -> bool:
    return project in {FLEET, seen.project}
