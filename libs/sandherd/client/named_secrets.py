"""Named secrets of a project: set, list, delete, and a check of the specs that name them."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sandherd.client.connection import Connection
from sandherd.client.errors import STATUS_REMEDY, HerdError, ServiceUnavailableError, validated
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.sealed_secrets import seal, secret_member

if TYPE_CHECKING:
    from sandherd.contracts.specs import SandboxSpec

CHECK_SECONDS: Final = 2.0
"""The timeout of the request for the existing names."""


def checked_secret_name(name: str) -> str:
    """The name, if it is valid for a secret. Raises `HerdError` before anything is read or sent."""
    from sandherd.contracts.patterns import STORED_NAME_PATTERN

    if re.fullmatch(STORED_NAME_PATTERN, name) is None:
        raise HerdError.of(
            Code.UNSAFE_NAME,
            f"invalid secret name {name[:80]!r}",
            field="name",
            remedy="use 1 to 64 letters, digits, _ and -, beginning with a letter or digit",
        )
    return name


class NamedSecrets:
    """The named-secret methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection
    _known_names: frozenset[str] = frozenset()
    """The names that existed at the last check."""

    async def set_secret(self, name: str, value: str, *, by: str | None = None) -> "requests.SecretView":
        """Store a value under a name, in place of a previous value. It is encrypted for the spawner, never returned."""
        sealed = await self._sealed_values({secret_member(self.connection.project, name): value})
        return await self.connection.request(validated(requests.SetSecret, name=name, sealed=sealed, updated_by=by))

    async def secrets(self) -> "requests.SecretList":
        """The project's named secrets, without values."""
        return await self.connection.request(requests.ListSecrets())

    async def delete_secret(self, name: str, *, force: bool = False) -> "requests.SecretDeleted":
        """Delete a named secret and erase its value; with `force` even if unfinished tasks use it.

        Running attempts still have the value that they started with; later attempts fail.
        """
        return await self.connection.request(validated(requests.DeleteSecret, name=name, force=force))

    async def _sealed_values(self, values: Mapping[str, str]) -> str:
        """Values of secrets, encrypted for the spawner, because they are never sent in plain text."""
        key = (await self.connection.request(requests.ListRuntimes())).secrets_key
        if key is None:
            raise HerdError.of(
                Code.UNAVAILABLE, "this spawner has no key for secrets", remedy="update the herd's services"
            )
        return encrypt_for_spawner(key, values)

    async def _check_named_secrets(self, spec: "SandboxSpec") -> None:
        """Refuse a spec that names an unknown secret. Without a reply, only the spawner checks the names."""
        used_names = set(spec.secrets.values())
        if used_names <= self._known_names:
            return
        try:
            reply = await self.connection.request(requests.ListSecrets(), timeout=CHECK_SECONDS)
        except ServiceUnavailableError:
            return
        self._known_names = frozenset(secret.name for secret in reply.secrets)
        absent = sorted(used_names - self._known_names)
        if absent:
            raise HerdError.of(
                Code.NOT_FOUND,
                f"there is no secret {absent[0]} in project {self.connection.project}",
                field="spec.secrets",
                remedy=f"store it with `sandherd secrets set {absent[0]}`",
            )


def encrypt_for_spawner(key: str, values: Mapping[str, str]) -> str:
    """Values encrypted with the spawner's public key. Raises `HerdError` for an invalid key."""
    try:
        return seal(values, key)
    except ValueError as error:
        raise HerdError.of(Code.INTERNAL, str(error), remedy=STATUS_REMEDY) from None
