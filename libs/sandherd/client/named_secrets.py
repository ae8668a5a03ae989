"""Named secrets of a project: set, list, delete, and a check of the specs that name them."""

import re
from collections.abc import Mapping
from typing import Final

from sandherd.client.connection import Connection
from sandherd.client.errors import STATUS_REMEDY, HerdError, ServiceAwayError, made
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    DeleteSecret,
    ListRuntimes,
    ListSecrets,
    SecretDeleted,
    SecretList,
    SecretView,
    SetSecret,
)
from sandherd.contracts.specs import STORED_NAME_PATTERN, SandboxSpec
from sandherd.sealed_secrets import seal, secret_member

CHECK_SECONDS: Final = 2.0


def checked_secret_name(name: str) -> str:
    """The name, if a secret may have it. Raises `HerdError` before anything is read or sent."""
    if re.fullmatch(STORED_NAME_PATTERN, name) is None:
        raise HerdError.of(
            Code.UNSAFE_NAME,
            f"no secret can be called {name[:80]!r}",
            field="name",
            remedy="use 1 to 64 letters, digits, _ and -, beginning with a letter or digit",
        )
    return name


class NamedSecrets:
    """The part of `Herd` that is about named secrets. Every method raises `HerdError`."""

    connection: Connection
    _names: frozenset[str] = frozenset()
    """Names that were there when they were looked for last."""

    async def set_secret(self, name: str, value: str, *, by: str | None = None) -> SecretView:
        """Store a value under a name, instead of the one before. It is encrypted for the spawner and never returned."""
        sealed = await self.sealed_values({secret_member(self.connection.project, name): value})
        return await self.connection.ask(made(SetSecret, name=name, sealed=sealed, updated_by=by))

    async def secrets(self) -> SecretList:
        """The project's named secrets, without values."""
        return await self.connection.ask(ListSecrets())

    async def delete_secret(self, name: str, *, force: bool = False) -> SecretDeleted:
        """Delete a named secret and erase its value; with `force` also while tasks that have not ended need it.

        Attempts that run keep the value they were given; later ones fail.
        """
        return await self.connection.ask(made(DeleteSecret, name=name, force=force))

    async def sealed_values(self, values: Mapping[str, str]) -> str:
        """Values of secrets, encrypted for the spawner: they are never sent in clear."""
        key = (await self.connection.ask(ListRuntimes())).secrets_key
        if key is None:
            raise HerdError.of(
                Code.UNAVAILABLE, "this spawner offers no key for secrets", remedy="update the herd's services"
            )
        return sealed_for(key, values)

    async def check_named_secrets(self, spec: SandboxSpec) -> None:
        """Refuse a spec that names a secret which is not there. Without an answer, the spawner is left to decide."""
        wanted = set(spec.secrets.values())
        if wanted <= self._names:
            return
        try:
            found = await self.connection.ask(ListSecrets(), timeout=CHECK_SECONDS)
        except ServiceAwayError:
            return
        self._names = frozenset(one.name for one in found.secrets)
        absent = sorted(wanted - self._names)
        if absent:
            raise HerdError.of(
                Code.NOT_FOUND,
                f"there is no secret {absent[0]} in project {self.connection.project}",
                field="spec.secrets",
                remedy=f"store it with `sandherd secrets set {absent[0]}`",
            )


def sealed_for(key: str, values: Mapping[str, str]) -> str:
    """Values encrypted with the spawner's public key. Raises `HerdError` for a key that is none."""
    try:
        return seal(values, key)
    except ValueError as error:
        raise HerdError.of(Code.INTERNAL, str(error), remedy=STATUS_REMEDY) from None
