"""Keys of stored secrets that no record needs, left over if a spawner crashed between two writes."""

from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.named_secrets.secret_store import BUCKET as SECRETS
from spawner.named_secrets.secret_store import WEBHOOK_BUCKET

_log = logs.get("unneeded_keys")


class UnneededKeys:
    """Erases a key that is unneeded at two sweeps in a row: at the first one, its record may not be written yet."""

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._unneeded: frozenset[str] = frozenset()

    async def erase(self) -> None:
        """Erase unneeded keys once, as part of a sweep. Raises `StoreUnavailableError`."""
        vault = self._live.vault
        if vault is None:
            return
        await vault.retry_erasures()
        found = frozenset([name for name in await vault.names() if not await self._is_needed(name)])
        for name in found & self._unneeded:
            _log.info("unused encryption key erased", key=name)
            await vault.erase(name)
        self._unneeded = found - self._unneeded

    async def _is_needed(self, name: str) -> bool:
        bucket, _, key = name.partition(".")
        if self._has_live_record(bucket, key):
            return True
        if bucket == SECRETS:
            return await self._live.secrets.needs_key(key)
        if bucket == WEBHOOK_BUCKET:
            return await self._live.webhook_secrets.needs_key(key)
        if bucket == "tasks":
            task = await self._live.tasks.load(key)
            return task is not None and task.record.sealed is not None
        sandbox = await self._live.sandboxes.load(key)
        return sandbox is not None and sandbox.record.sealed is not None

    def _has_live_record(self, bucket: str, key: str) -> bool:
        """Whether the index shows that a key's record is still in use: then the record is not read."""
        if bucket == "tasks":
            task = self._live.task_index.get(key)
            return task is not None and task.view.state not in TASK_ENDED
        sandbox = self._live.sandbox_index.get(key)
        return sandbox is not None and sandbox.view.state not in SANDBOX_ENDED
