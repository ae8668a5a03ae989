"""Orphans: what a runtime has and no record wants. Reported, and removed after a grace time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.lifecycle import SandboxEvent, SandboxOrphanFound, SandboxOrphanRemoved
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.runtimes.contract import Runtime, RuntimeFailedError, Seen
from spawner.sandboxes.runtimes import answered

Present = Mapping[str, tuple[Runtime, Seen]]
"""What is there, by sandbox, and the runtime that has it."""
_TIMEOUT: Final = 60.0
_log: Final = logs.get("orphans")


@dataclass
class Waiting:
    """When each orphan was first seen. It is removed only if it still is one after its grace time, in seconds."""

    grace: float
    since: dict[str, datetime] = field(default_factory=dict)

    def update(self, orphans: frozenset[str], now: datetime) -> tuple[list[str], list[str]]:
        """`(new, due)`: those to be reported, and those to be removed."""
        new = sorted(orphans - self.since.keys())
        self.since = {name: self.since.get(name, now) for name in orphans}
        grace = timedelta(seconds=self.grace)
        return new, sorted(name for name, first in self.since.items() if now - first >= grace)


class Ward:
    """Tends orphans. `project` is whose they are said to be where nothing on them says it."""

    def __init__(self, bus: Bus, live: Live, project: str, grace: float) -> None:
        self._bus = bus
        self._live = live
        self._project = project
        self._waiting = Waiting(grace)

    async def tend(self, orphans: frozenset[str], present: Present, now: datetime) -> None:
        """Report the new ones and remove those whose time is up."""
        real = frozenset([name for name in orphans if await self.unwanted(present[name][1])])
        new, due = self._waiting.update(real, now)
        for name in new:
            await self.report(*present[name], now)
        for name in due:
            try:
                await self.remove(*present[name], now)
            except (RuntimeFailedError, OSError) as error:
                _log.error("an orphan can't be removed; the next sweep tries again", sandbox=name, error=repr(error))

    async def unwanted(self, seen: Seen) -> bool:
        """Whether the buckets themselves have no record of it: what is known in memory may be a moment behind."""
        if await self._live.pool.load(seen.unit) is not None:
            return False
        return await self._live.sandboxes.load(f"{self._project_of(seen)}.{seen.unit}") is None

    async def report(self, runtime: Runtime, seen: Seen, now: datetime) -> None:
        """Say that it was found; said twice, it is one event."""
        _log.warning("orphan", sandbox=seen.unit, runtime=runtime.name, alive=seen.alive)
        self._live.meters.count("sandherd_orphans_total", outcome="found")
        await self._say(seen, SandboxOrphanFound(runtime=runtime.name), 1, now)

    async def remove(self, runtime: Runtime, seen: Seen, now: datetime) -> None:
        """Have it removed, and say so."""
        await answered(runtime.remove(seen.unit), _TIMEOUT, f"runtime {runtime.name}")
        self._live.meters.count("sandherd_orphans_total", outcome="removed")
        await self._say(seen, SandboxOrphanRemoved(runtime=runtime.name), 2, now)

    def _project_of(self, seen: Seen) -> str:
        return seen.project or self._project

    async def _say(self, seen: Seen, data: SandboxEvent, sequence: int, now: datetime) -> None:
        """An event of something without a record: its id is made of what lies there, so that it is said once."""
        source = f"/sandherd/spawner/{seen.unit}/orphan"
        await self._bus.publish_event(
            wrap(
                data,
                data.type,
                source=source,
                sequence=sequence,
                project=self._project_of(seen),
                subject=seen.unit,
                time=now,
                id=self._bus.ids.derive(datetime.fromtimestamp(seen.since, UTC), source, sequence),
                sandboxid=seen.unit,
            )
        )
