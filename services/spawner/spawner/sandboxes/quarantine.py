"""Counts quarantined sandboxes with unpublished events, and retries their recovery periodically."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.runtimes.contract import Runtime, RuntimeFailedError
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.reconciler import SandboxReconciler
from spawner.sandboxes.runtime_calls import call_with_timeout
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.sandboxes.sweep import units

AGAIN: Final = timedelta(minutes=10)
"""Time between two retries. The first is at the start, because the cause may just have been fixed."""
_TIMEOUT: Final = 60.0
_log: Final = logs.get("quarantine")


class Quarantine:
    """Retries the recovery of quarantined sandboxes whose records still exist."""

    def __init__(self, live: LiveState, reconciler: SandboxReconciler) -> None:
        self._live = live
        self._reconciler = reconciler
        self._tried_at: datetime | None = None

    async def reconcile(self, quarantined: Mapping[str, Runtime], now: datetime) -> None:
        """Count quarantined sandboxes, remove those with nothing to publish, and retry the others when due."""
        self._live.meters.set("sandherd_sandboxes_kept", len(quarantined))
        names = units(dict(self._live.sandbox_index.items()))
        known = {names[unit]: (unit, runtime) for unit, runtime in quarantined.items() if unit in names}
        for key, (unit, runtime) in known.items():
            await self._remove_if_needless(key, unit, runtime)
        if self._tried_at is not None and now - self._tried_at < AGAIN:
            return
        self._tried_at = now
        for key, (unit, runtime) in known.items():
            await self._try_again(key, unit, runtime)

    async def _remove_if_needless(self, key: str, unit: str, runtime: Runtime) -> None:
        held = await self._live.sandboxes.load(key)
        if held is None or not sandbox_transitions.is_needlessly_quarantined(held.record):
            return
        _log.warning("unexpected quarantined sandbox removed", sandbox=unit, runtime=runtime.name)
        try:
            await call_with_timeout(runtime.remove(unit), _TIMEOUT, f"runtime {runtime.name}")
        except (RuntimeFailedError, OSError) as error:
            _log.error("quarantined sandbox not removed, retrying at next sweep", sandbox=unit, error=repr(error))

    async def _try_again(self, key: str, unit: str, runtime: Runtime) -> None:
        held = await self._live.sandboxes.load(key)
        if held is None or not held.record.unsaid or not await self._has_plan(held.record):
            return
        _log.info("retrying unpublished events of quarantined sandbox", sandbox=unit)
        await self._live.change_sandbox(key, sandbox_transitions.one_more_recovery)
        await runtime.unquarantine(unit)
        self._reconciler.wake(key)

    async def _has_plan(self, sandbox: SandboxRecord) -> bool:
        """Whether the plan of the sandbox's worker can still be built."""
        return sandbox.task is None or await self._live.load_task(sandbox) is not None
