"""What was put aside because something in it could not be said: counted, and tried again now and then."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sandherd.telemetry import logs
from spawner.live import Live
from spawner.runtimes.contract import Runtime, RuntimeFailedError
from spawner.sandboxes import decisions
from spawner.sandboxes.keeper import Keeper
from spawner.sandboxes.record import SandboxRecord
from spawner.sandboxes.runtimes import answered
from spawner.sandboxes.sweep import units

AGAIN: Final = timedelta(minutes=10)
"""How long between two tries. The first is at the start: what was broken may just have been mended."""
_TIMEOUT: Final = 60.0
_log: Final = logs.get("kept")


class Kept:
    """Puts sandboxes back to be recovered once more, as long as there are records of them."""

    def __init__(self, live: Live, keeper: Keeper) -> None:
        self._live = live
        self._keeper = keeper
        self._tried_at: datetime | None = None

    async def tend(self, kept: Mapping[str, Runtime], now: datetime) -> None:
        """Count them, remove those that nobody has put there, and try the others again if it is time to."""
        self._live.meters.set("sandherd_sandboxes_kept", len(kept))
        names = units(dict(self._live.sandbox_index.items()))
        known = {names[unit]: (unit, runtime) for unit, runtime in kept.items() if unit in names}
        for key, (unit, runtime) in known.items():
            await self._remove_if_in_vain(key, unit, runtime)
        if self._tried_at is not None and now - self._tried_at < AGAIN:
            return
        self._tried_at = now
        for key, (unit, runtime) in known.items():
            await self._try_again(key, unit, runtime)

    async def _remove_if_in_vain(self, key: str, unit: str, runtime: Runtime) -> None:
        held = await self._live.sandboxes.load(key)
        if held is None or not decisions.lies_in_vain(held.record):
            return
        _log.warning("put aside by nobody, and removed", sandbox=unit, runtime=runtime.name)
        try:
            await answered(runtime.remove(unit), _TIMEOUT, f"runtime {runtime.name}")
        except (RuntimeFailedError, OSError) as error:
            _log.error("it can't be removed; the next sweep tries again", sandbox=unit, error=repr(error))

    async def _try_again(self, key: str, unit: str, runtime: Runtime) -> None:
        held = await self._live.sandboxes.load(key)
        if held is None or not held.record.unsaid or not await self._has_plan(held.record):
            return
        _log.info("trying to say what was left unsaid", sandbox=unit)
        await self._live.change_sandbox(key, decisions.tried_again)
        await runtime.take_back(unit)
        self._keeper.wake(key)

    async def _has_plan(self, sandbox: SandboxRecord) -> bool:
        """Whether it is still known what its worker is to be started with."""
        return sandbox.task is None or await self._live.load_task(sandbox) is not None
