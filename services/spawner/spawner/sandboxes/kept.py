"""What was put aside because something in it could not be said: counted, and tried again now and then."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sandherd.telemetry import logs
from spawner.live import Live
from spawner.runtimes.contract import Runtime
from spawner.sandboxes import decisions
from spawner.sandboxes.keeper import Keeper
from spawner.sandboxes.record import SandboxRecord

AGAIN: Final = timedelta(minutes=10)
"""How long between two tries. The first is at the start: what was broken may just have been mended."""
_log: Final = logs.get("kept")


class Kept:
    """Puts sandboxes back to be recovered once more, as long as there are records of them."""

    def __init__(self, live: Live, keeper: Keeper) -> None:
        self._live = live
        self._keeper = keeper
        self._tried_at: datetime | None = None

    async def tend(self, kept: Mapping[str, Runtime], now: datetime) -> None:
        """Count them, and try them again if it is time to."""
        self._live.meters.set("sandherd_sandboxes_kept", len(kept))
        if self._tried_at is not None and now - self._tried_at < AGAIN:
            return
        self._tried_at = now
        names = {known.view.sandbox: key for key, known in self._live.sandbox_index.items()}
        for sandbox, runtime in kept.items():
            if sandbox in names:
                await self._try_again(names[sandbox], sandbox, runtime)

    async def _try_again(self, key: str, sandbox: str, runtime: Runtime) -> None:
        held = await self._live.sandboxes.load(key)
        if held is None or not held.record.unsaid or not await self._has_plan(held.record):
            return
        _log.info("trying to say what was left unsaid", sandbox=sandbox)
        await self._live.change_sandbox(key, decisions.tried_again)
        await runtime.take_back(sandbox)
        self._keeper.wake(key)

    async def _has_plan(self, sandbox: SandboxRecord) -> bool:
        """Whether it is still known what its worker is to be started with."""
        return sandbox.task is None or await self._live.load_task(sandbox) is not None
