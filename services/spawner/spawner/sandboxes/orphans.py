"""Orphans: sandboxes in a runtime that no record needs. Reported, and removed after a grace period."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.sandbox import SandboxEvent, SandboxOrphanFound, SandboxOrphanRemoved
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.runtimes.contract import ObservedSandbox, Runtime, RuntimeFailedError
from spawner.sandboxes.runtime_calls import call_with_timeout

Present = Mapping[str, tuple[Runtime, ObservedSandbox]]
"""All observed sandboxes by unit, each with its runtime."""
_TIMEOUT: Final = 60.0
_log: Final = logs.get("orphans")


@dataclass
class OrphanSightings:
    """When each orphan was first seen. It is removed only if it is still an orphan after `grace` seconds."""

    grace: float
    since: dict[str, datetime] = field(default_factory=dict)

    def update(self, orphans: frozenset[str], now: datetime) -> tuple[list[str], list[str]]:
        """`(new, due)`: those to report, and those to remove."""
        new = sorted(orphans - self.since.keys())
        self.since = {name: self.since.get(name, now) for name in orphans}
        grace = timedelta(seconds=self.grace)
        return new, sorted(name for name, first in self.since.items() if now - first >= grace)


class OrphanCollector:
    """Reports and removes orphans. `project` is used for orphans that do not name their project."""

    def __init__(self, bus: Bus, live: LiveState, project: str, grace: float) -> None:
        self._bus = bus
        self._live = live
        self._project = project
        self._waiting = OrphanSightings(grace)

    async def reconcile(self, orphans: frozenset[str], present: Present, now: datetime) -> None:
        """Report new orphans, and remove those whose grace period has expired."""
        real = frozenset([name for name in orphans if await self.unwanted(present[name][1])])
        new, due = self._waiting.update(real, now)
        for name in new:
            await self.report(*present[name], now)
        for name in due:
            try:
                await self.remove(*present[name], now)
            except (RuntimeFailedError, OSError) as error:
                _log.error("orphaned sandbox not removed, retrying at next sweep", sandbox=name, error=repr(error))

    async def unwanted(self, seen: ObservedSandbox) -> bool:
        """Whether no bucket has a record of a sandbox. They are read, because the in-memory index may be outdated."""
        if await self._live.pool.load(seen.unit) is not None:
            return False
        return await self._live.sandboxes.load(f"{self._project_of(seen)}.{seen.unit}") is None

    async def report(self, runtime: Runtime, seen: ObservedSandbox, now: datetime) -> None:
        """Publish that an orphan was found. A repeated call publishes the same event, which is stored once."""
        _log.warning("orphaned sandbox found", sandbox=seen.unit, runtime=runtime.name, alive=seen.alive)
        self._live.meters.count("sandherd_orphans_total", outcome="found")
        await self._publish(seen, SandboxOrphanFound(runtime=runtime.name), 1, now)

    async def remove(self, runtime: Runtime, seen: ObservedSandbox, now: datetime) -> None:
        """Remove an orphan, and publish that."""
        await call_with_timeout(runtime.remove(seen.unit), _TIMEOUT, f"runtime {runtime.name}")
        self._live.meters.count("sandherd_orphans_total", outcome="removed")
        await self._publish(seen, SandboxOrphanRemoved(runtime=runtime.name), 2, now)

    def _project_of(self, seen: ObservedSandbox) -> str:
        return seen.project or self._project

    async def _publish(self, seen: ObservedSandbox, data: SandboxEvent, sequence: int, now: datetime) -> None:
        """Publish an event of a sandbox without a record. Its id is derived from the sandbox, so it is stored once."""
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
