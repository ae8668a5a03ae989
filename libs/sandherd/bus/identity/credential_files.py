"""Creates credentials files that are missing, and replaces those whose permissions differ from this version's."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from sandherd.bus.auth.account_names import Account, account_of
from sandherd.bus.auth.inboxes import USER_PRINCIPALS
from sandherd.bus.auth.permissions import OF_ONE_PROJECT, SERVICES, Permissions, for_service, for_user
from sandherd.bus.auth.setup_permissions import (
    PROBE_PERMISSIONS,
    PROVISIONER,
    SETUP_LIFETIME,
    STORE_GUARD,
    WATCHER_CREDENTIALS,
    WATCHER_PERMISSIONS,
    for_provisioner,
    for_stream_changes,
)
from sandherd.bus.identity.credentials import bearer, parts_of, write_secret
from sandherd.bus.identity.keys import Key, read_claims
from sandherd.bus.identity.material import HerdIdentity
from sandherd.bus.identity.minter import Clock, Registrar, utc_now
from sandherd.contracts.subjects import Principal

_MIN_LIFETIME_LEFT: Final = SETUP_LIFETIME / 2
"""A provisioner's credential that expires within this number of seconds is replaced."""


class CredentialFiles:
    """The credentials files of a herd's services, clients and operators. `path_of(name)` is the path of a file."""

    def __init__(self, identity: HerdIdentity, path_of: Callable[[str], Path], clock: Clock = utc_now) -> None:
        self._registrar = Registrar(identity, clock)
        self._path_of = path_of

    def ensure(self, principal: Principal, project: str) -> Path:
        """Ensure the file of a service, client or operator, and return its path. `project` is the project of a client.

        Raises `UnsafeNameError`.
        """
        name = f"{principal}-{project}" if principal in OF_ONE_PROJECT else principal.value
        if principal in USER_PRINCIPALS:
            return self._ensure(name, partial(self._registrar.mint_person, principal, name[:63], project=project))
        return self._ensure(name, lambda: self._registrar.mint_service(principal, self._service_key(name)))

    def ensure_provisioner(self, *, changes: bool) -> Path:
        """Ensure the file of the provisioner, valid for at least half an hour and at most an hour. Returns its path.

        With `changes` it may also change existing streams and consumers.
        """
        account, allowed = (Account.HERD, for_stream_changes()) if changes else (Account.PROVISIONER, for_provisioner())
        path = self._path_of(PROVISIONER)
        if not path.exists() or not self._is_valid(path, account, allowed, _MIN_LIFETIME_LEFT):
            write_secret(path, self._registrar.mint_stream_changer() if changes else self._registrar.mint_provisioner())
        return path

    def _is_valid(self, path: Path, account: Account, allowed: Permissions, seconds: float) -> bool:
        return self._grants(path, account, allowed) and not self._registrar.needs_renewal(_claims(path), seconds)

    def ensure_store_guard(self) -> tuple[Path, Path]:
        """Ensure the two files of a deployment's `store-guard`, and return their paths.

        The first allows publishing the probe, the second requesting the health of servers.
        """
        probe = self._path_of(STORE_GUARD)
        watcher = probe.with_name(WATCHER_CREDENTIALS)
        for path, allowed, mint in (
            (probe, PROBE_PERMISSIONS, self._registrar.mint_probe),
            (watcher, WATCHER_PERMISSIONS, self._registrar.mint_watcher),
        ):
            if not path.exists() or not self._grants(path, Account.STORE_GUARD, allowed):
                write_secret(path, mint())
        return probe, watcher

    def _ensure(self, name: str, mint: Callable[[], str]) -> Path:
        path = self._path_of(name)
        if not path.exists() or not self._is_up_to_date(path):
            write_secret(path, mint())
        return path

    def _service_key(self, name: str) -> Key | None:
        """The key in a service's existing file, or None.

        A new file gets the same key, because ids of events are derived from it.
        """
        try:
            return Key.from_seed(parts_of(self._path_of(name).read_text())[1])
        except (FileNotFoundError, ValueError):
            return None

    def _is_up_to_date(self, path: Path) -> bool:
        """Whether a credential has the permissions that this version declares.

        A service's credential must never expire.
        """
        try:
            text = path.read_text()
            user = bearer(text)
        except ValueError:
            return False  # the file is damaged, and is created again
        if user.principal in SERVICES and user.expires_at is not None:
            return False
        return self._grants(path, account_of(user.principal), _required_permissions(text))

    def _grants(self, path: Path, account: Account, allowed: Permissions) -> bool:
        try:
            existing = _claims(path)
        except ValueError:
            return False
        allows = all(existing["nats"].get(name) == value for name, value in allowed.claims().items())
        return allows and self._registrar.is_signed_for(existing, account)


def _claims(path: Path) -> dict[str, Any]:
    """The claims of a credential. Raises `ValueError` if it is damaged."""
    return read_claims(parts_of(path.read_text())[0])


def _required_permissions(text: str) -> Permissions:
    user = bearer(text)
    if user.principal in USER_PRINCIPALS:
        return for_user(user.principal, user.project, user.public_key)
    return for_service(user.principal)
