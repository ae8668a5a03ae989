"""Credentials as files: minted where there is none, and anew where one lacks permissions of this version."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from sandherd.bus.account_names import Account, account_of
from sandherd.bus.identity.credentials import bearer, parts_of, write_secret
from sandherd.bus.identity.keys import Key, read_claims
from sandherd.bus.identity.material import Identity
from sandherd.bus.identity.minting import Clock, Registrar, utc_now
from sandherd.bus.permissions import OF_ONE_PROJECT, PEOPLE, SERVICES, Permissions, for_person, for_service
from sandherd.bus.setup_permissions import (
    LIFE,
    PROBING,
    PROVISIONER,
    STORE_GUARD,
    WATCHER_CREDENTIALS,
    WATCHING,
    for_provisioner,
    for_stream_changes,
)
from sandherd.contracts.subjects import Principal

_RENEWED: Final = LIFE / 2
"""A provisioner's credential with less than this many seconds left is replaced."""


class CredentialFiles:
    """The credentials of services and people of one identity, each in the file that `place` gives for its name."""

    def __init__(self, identity: Identity, place: Callable[[str], Path], clock: Clock = utc_now) -> None:
        self._registrar = Registrar(identity, clock)
        self._place = place

    def keep(self, principal: Principal, project: str) -> Path:
        """The file of a service or a person; `project` is a client's. Raises `UnsafeNameError`."""
        name = f"{principal}-{project}" if principal in OF_ONE_PROJECT else principal.value
        if principal in PEOPLE:
            return self._kept(name, partial(self._registrar.mint_person, principal, name[:63], project=project))
        return self._kept(name, lambda: self._registrar.mint_service(principal, self._service_key(name)))

    def keep_provisioner(self, *, changes: bool) -> Path:
        """The file of the provisioner, accepted for half an hour at least and an hour at most.

        With `changes` it may also change streams and consumers that exist.
        """
        account, allowed = (Account.HERD, for_stream_changes()) if changes else (Account.PROVISIONER, for_provisioner())
        path = self._place(PROVISIONER)
        if not path.exists() or not self._is_valid(path, account, allowed, _RENEWED):
            write_secret(path, self._registrar.mint_stream_changer() if changes else self._registrar.mint_provisioner())
        return path

    def _is_valid(self, path: Path, account: Account, allowed: Permissions, seconds: float) -> bool:
        held = read_claims(parts_of(path.read_text())[0])
        return self._grants(path, account, allowed) and not self._registrar.expires_within(held, seconds)

    def keep_store_guard(self) -> tuple[Path, Path]:
        """The two files of a deployment's `store-guard`: to write the probe, and to request the health of servers."""
        probe = self._place(STORE_GUARD)
        watcher = probe.with_name(WATCHER_CREDENTIALS)
        for path, allowed, mint in (
            (probe, PROBING, self._registrar.mint_probe),
            (watcher, WATCHING, self._registrar.mint_watcher),
        ):
            if not path.exists() or not self._grants(path, Account.STORE_GUARD, allowed):
                write_secret(path, mint())
        return probe, watcher

    def _kept(self, name: str, mint: Callable[[], str]) -> Path:
        path = self._place(name)
        if not path.exists() or not self._up_to_date(path):
            write_secret(path, mint())
        return path

    def _service_key(self, name: str) -> Key | None:
        """The key of a service that had a credential before: the ids of its events are derived from it."""
        path = self._place(name)
        return Key.from_seed(parts_of(path.read_text())[1]) if path.exists() else None

    def _up_to_date(self, path: Path) -> bool:
        """Whether a credential has this version's permissions of its principal; a service's must not expire, too."""
        text = path.read_text()
        who = bearer(text)
        if who.principal in SERVICES and who.expires_at is not None:
            return False
        return self._grants(path, account_of(who.principal), _wanted(text))

    def _grants(self, path: Path, account: Account, allowed: Permissions) -> bool:
        held = read_claims(parts_of(path.read_text())[0])
        same = all(held["nats"].get(name) == value for name, value in allowed.claims().items())
        return same and self._registrar.vouched(held, account)


def _wanted(text: str) -> Permissions:
    who = bearer(text)
    if who.principal in PEOPLE:
        return for_person(who.principal, who.project, who.public_key)
    return for_service(who.principal)
