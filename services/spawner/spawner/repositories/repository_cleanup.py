"""Limits the space of repositories: removes mirrors and records that are not needed, and collects garbage."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.states import BranchState
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import GitError
from spawner.repositories.lfs import remove_unused
from spawner.repositories.mirror_gc import collect_garbage, delete_ended, has_changed
from spawner.repositories.mirror_limits import MirrorUsage, may_be_removed, mirrors_to_remove
from spawner.repositories.mirror_paths import mirror_path
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.submodules import remove_refs
from spawner.sandboxes.reconciler import FOR_NOW

_INTERVAL_SECONDS: Final = 600.0
"""Seconds between two passes."""
COLLECTION_INTERVAL: Final = timedelta(days=1)
"""The minimum time between two garbage collections of a mirror."""
_GAUGES: Final = ("sandherd_mirrors", "sandherd_mirrors_bytes")
_log: Final = logs.get("mirrors")


class RepositoryCleanup:
    """Cleans up repositories while it holds the lease."""

    def __init__(self, live: LiveState, lease: Lease, mirrors: Mirrors, keep_ended: float) -> None:
        """`keep_ended`: how long the record of an ended branch is stored, in seconds."""
        self._live, self._lease, self._mirrors = live, lease, mirrors
        self._keep = timedelta(seconds=keep_ended)
        self._collected_at: dict[Path, datetime] = {}
        mirrors.on_full(self.free_space)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._live.branch_index.complete.wait()
        try:
            while True:
                await self._lease.wait_held()
                await self._try_pass()
                await asyncio.sleep(_INTERVAL_SECONDS)
        finally:
            self._live.meters.hide(*_GAUGES)

    async def _try_pass(self) -> None:
        try:
            await self.run_pass()
        except LeaseLostError as error:
            _log.info("lease lost to another replica", lease=str(error))
        except FOR_NOW as error:
            _log.warning("mirrors not checked, retrying", error=repr(error))
        except Exception as error:  # noqa: BLE001  # tasks continue without the cleanup, and the next pass retries
            _log.error("check of mirrors failed, retrying", exc_info=error)

    async def run_pass(self) -> None:
        """One pass over all mirrors, and over the records of branches. Raises `LeaseLostError`."""
        for project in await asyncio.to_thread(self._mirrors.existing):
            await self._remove_unneeded(project)
        for paths in (await asyncio.to_thread(self._mirrors.existing)).values():
            for path in paths:
                self._lease.check()
                await self._clean_up(path)
        await self._measure()
        await self._remove_records()

    async def free_space(self, project: str) -> None:
        """Remove mirrors so that the project may have another one, if that is possible."""
        await self._remove_unneeded(project, extra=1)

    async def _remove_unneeded(self, project: str, extra: int = 0) -> None:
        usage = await asyncio.to_thread(self._usage_of, project)
        for mirror in mirrors_to_remove(usage, self._mirrors.limits, self._live.now(), extra=extra):
            self._lease.check()
            await self._mirrors.remove(mirror.path)
            _log.info("mirror removed", directory=str(mirror.path), bytes=mirror.size)

    def _usage_of(self, project: str) -> Sequence[MirrorUsage]:
        needed = {self._path(branch.project, branch.repository) for branch in self._live_branches()}
        mirrors = [self._mirrors.at(path) for path in self._mirrors.existing().get(project, ())]
        return [
            MirrorUsage(one.path, one.size_bytes(), datetime.fromtimestamp(one.used_at(), UTC), one.path in needed)
            for one in mirrors
        ]

    async def _clean_up(self, path: Path) -> None:
        """Delete the mirror's branches that have ended. Once a day, collect the garbage of a mirror that was used."""
        mirror, now = self._mirrors.at(path), self._live.now()
        try:
            await delete_ended(mirror, lambda: [one.branch for one in self._live_branches() if self._is_of(one, path)])
            if not any(self._is_of(one, path) for one in self._live_branches()):
                await remove_refs(mirror)
                await asyncio.to_thread(remove_unused, mirror, every=True)
            due = now - self._collected_at.get(path, datetime.min.replace(tzinfo=UTC)) >= COLLECTION_INTERVAL
            if due and await asyncio.to_thread(has_changed, mirror):
                self._collected_at[path] = now
                await collect_garbage(mirror)
        except GitError as error:
            _log.warning("mirror not repacked", directory=str(path), error=str(error))

    async def _measure(self) -> None:
        def sizes() -> list[int]:
            return [
                self._mirrors.at(path).size_bytes() for paths in self._mirrors.existing().values() for path in paths
            ]

        bytes_of_mirrors = await asyncio.to_thread(sizes)
        for name, value in zip(_GAUGES, (len(bytes_of_mirrors), sum(bytes_of_mirrors)), strict=True):
            self._live.meters.set(name, value)

    async def _remove_records(self) -> None:
        now = self._live.now()
        for key, known in list(self._live.branch_index.items()):
            if known.unsaid or not may_be_removed(known.view, now, self._keep):
                continue
            self._lease.check()
            held = await self._live.branches.load(key)
            if held is not None and may_be_removed(held.record, now, self._keep):
                await self._live.branches.remove(held)

    def _live_branches(self) -> list[BranchRecord]:
        return [view for view in self._live.branch_index.views() if view.state is BranchState.LIVE]

    def _is_of(self, branch: BranchRecord, path: Path) -> bool:
        return self._path(branch.project, branch.repository) == path

    def _path(self, project: str, repository: str) -> Path:
        return mirror_path(self._mirrors.folder, project, repository)
