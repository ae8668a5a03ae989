"""A named secret as it is stored in the bucket `secrets`."""

from typing import Self

from pydantic import AwareDatetime

from sandherd.contracts.specs import SecretName
from spawner.records.base_record import Record


class SecretRecord(Record):
    """A project's secret, encrypted with its own key. Each new value has a new key."""

    secret: SecretName
    version: str
    """32 hexadecimal digits, different for each value. They are a part of `vault_key`."""
    value: str = ""
    """The value, in memory only."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    updated_by: str | None = None

    @property
    def name(self) -> str:
        """The secret's name."""
        return self.secret

    @property
    def source(self) -> str:
        """Unused, because this kind of record publishes no events."""
        return f"/sandherd/spawner/{self.secret}"

    @property
    def vault_key(self) -> str:
        """The name, in the vault, of the key that encrypts the value. The key is erased when another value is set."""
        return f"{self.key}.{self.version}"

    def event_ids(self) -> dict[str, str | None]:
        """Empty, because this kind of record publishes no events."""
        return {}

    def secret_part(self) -> str | None:
        """The value, or None if the record is without it."""
        return self.value or None

    def without_secret_part(self) -> Self:
        """The record without the value."""
        return self.model_copy(update={"value": ""})

    def with_secret_part(self, text: str) -> Self:
        """The record with this value."""
        return self.model_copy(update={"value": text})
