"""The store of named secrets, and the lookup of those that a spec references."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final
from uuid import uuid4

from sandherd.bus.connection import Bus
from spawner.named_secrets.secret_record import SecretRecord
from spawner.records.base_record import StoreUnavailableError
from spawner.records.store import Store
from spawner.records.vault import Vault
from spawner.spec_resolution import Refusal

BUCKET: Final = "secrets"
"""The bucket of secrets that specs can reference."""
WEBHOOK_BUCKET: Final = "webhook_secrets"
"""The bucket of secrets that sign webhooks. It has the same kind of records, but no spec can reference them."""


class SecretStore:
    """Named secrets by project and name, in one bucket. Every method raises `StoreUnavailableError`."""

    def __init__(self, bus: Bus, now: Callable[[], datetime], vault: Vault | None, bucket: str = BUCKET) -> None:
        self._bucket = bucket
        self._records = Store(bus, bucket, SecretRecord, vault=vault)
        self._vault = vault
        self._now = now

    async def put(self, project: str, name: str, value: str, updated_by: str | None) -> SecretRecord:
        """Store a value, and erase the key of the previous value."""
        now = self._now()
        new = SecretRecord(
            project=project,
            secret=name,
            version=uuid4().hex,
            value=value,
            created_at=now,
            updated_at=now,
            updated_by=updated_by,
        )
        held, created = await self._records.create(new)
        if created and held.record.version == new.version:
            return held.record
        changed = await self._records.change(new.key, lambda old, _: _with_new_value(old, new))
        return changed.record if changed else await self.put(project, name, value, updated_by)

    async def get(self, project: str, name: str) -> SecretRecord | None:
        """A secret without its value, or None."""
        held = await self._records.load_closed(f"{project}.{name}")
        return held.record if held else None

    async def value(self, project: str, name: str) -> str | None:
        """A secret's value, or None if there is no such secret or its key can't be read."""
        held = await self._records.load(f"{project}.{name}")
        return (held.record.value or None) if held else None

    async def all(self, project: str | None) -> list[SecretRecord]:
        """The secrets of a project, or of all projects, without values, by name."""
        keys = sorted(key for key in await self._records.keys() if project in {None, key.partition(".")[0]})
        loaded = [await self._records.load_closed(key) for key in keys]
        return [held.record for held in loaded if held]

    async def stored_keys(self) -> frozenset[str]:
        """The `vault_key` of every secret whose key is stored."""
        prefix = f"{self._bucket}."
        names = await self._vault.names() if self._vault else frozenset()
        return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    async def delete(self, project: str, name: str) -> bool:
        """Delete a secret and erase its key. Returns whether there was one."""
        held = await self._records.load_closed(f"{project}.{name}")
        while held is not None:
            if await self._records.remove(held):
                return True
            newer = await self._records.load_closed(f"{project}.{name}")
            if newer is not None and newer.revision == held.revision:
                raise StoreUnavailableError(f"{self._bucket} {held.record.key}: not deleted")
            held = newer
        return False

    async def needs_key(self, key: str) -> bool:
        """Whether `key` is the `vault_key` of a secret's present value."""
        project, name, version = key.split(".", 2)
        record = await self.get(project, name)
        return record is not None and record.version == version

    async def refusal(self, project: str, names: Mapping[str, str]) -> Refusal | None:
        """The refusal of a spec that references a missing secret, or None. `names`: the secrets' names by variable."""
        for name in sorted(set(names.values())):
            if await self.get(project, name) is None:
                return Refusal(missing_message(project, name), "spec.secrets")
        return None

    async def values(self, project: str, names: Mapping[str, str]) -> dict[str, str] | Refusal:
        """The values of secrets by variable, or why a value is unavailable. `names`: the secrets' names by variable."""
        values = {variable: await self.value(project, name) for variable, name in names.items()}
        absent = [names[variable] for variable, value in sorted(values.items()) if value is None]
        if absent:
            record = await self.get(project, absent[0])
            message = missing_message if record is None else _unreadable_message
            return Refusal(message(project, absent[0]), "spec.secrets")
        return {variable: value for variable, value in values.items() if value is not None}


def missing_message(project: str, name: str) -> str:
    """The message for a missing secret, with the remedy."""
    return f"there is no secret {name} in project {project}: store it with `sandherd secrets set {name}`"


def _unreadable_message(_project: str, name: str) -> str:
    reason = "a backup without secrets was restored, or the herd has other keys"
    return f"the value of secret {name} can't be read ({reason}): set it again with `sandherd secrets set {name}`"


def _with_new_value(old: SecretRecord, new: SecretRecord) -> SecretRecord:
    """The new record of an existing secret. Its value is encrypted when it is written."""
    return new.model_copy(update={"created_at": old.created_at, "sealed": None})


def tasks_referencing(references: Collection[tuple[str, Collection[str]]], name: str) -> list[str]:
    """The tasks that reference the secret `name`. `references`: each task with the names of its secrets."""
    return sorted(task for task, names in references if name in names)
