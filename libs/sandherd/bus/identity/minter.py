"""Creates credentials. `Minter` creates those of sandboxes, `Registrar` those of services, users and set-up.

Names become parts of subjects in permissions, so they are checked here again: a worker named `*` would have the
permissions of all sandboxes.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.bus.auth.accounts import Account, account_of
from sandherd.bus.auth.health_subjects import WATCHER
from sandherd.bus.auth.inboxes import USER_PRINCIPALS
from sandherd.bus.auth.permissions import (
    OF_ONE_PROJECT,
    SERVICES,
    Permissions,
    for_service,
    for_user,
    safe_project,
)
from sandherd.bus.auth.setup_permissions import (
    PROBE,
    PROBE_PERMISSIONS,
    PROVISIONER,
    SETUP_LIFETIME,
    WATCHER_PERMISSIONS,
    WHOLE_API,
    for_provisioner,
    for_stream_changes,
)
from sandherd.bus.identity import claims
from sandherd.bus.identity.credentials import credentials_text
from sandherd.bus.identity.keys import Key, KeyKind, is_public_key, sign_claims
from sandherd.bus.identity.material import ACCOUNT_KEYS, SIGNING_KEYS, HerdIdentity, SpawnerKeys
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import safe_name, safe_sandbox
from sandherd.contracts.subjects import Principal

__all__ = ["PROVISIONER", "Clock", "Minter", "Registrar"]

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class Minter:
    """Creates credentials of sandboxes, in the spawner.

    `life` is the time until a credential expires, in seconds, rounded down so that it expires at a whole second.
    """

    def __init__(self, keys: SpawnerKeys, clock: Clock = utc_now) -> None:
        self._keys = keys
        self._clock = clock
        self._account: str = keys.account["sub"]

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        """The text of a credentials file with which a sandbox may only request its worker's credential.

        All joiner credentials of one sandbox and serial number have the same key, so one revocation revokes all of
        them. Raises `UnsafeNameError`.
        """
        key = self._joiner(project, sandbox, serial)
        token, _ = self._mint(Principal.JOINER, key.public, project=project, sandbox=sandbox, life=life)
        return credentials_text(token, key.seed)

    def joiner_key(self, project: str, sandbox: str, serial: int) -> str:
        """The public key of the joiner credentials with this serial number, for revocation."""
        return self._joiner(project, sandbox, serial).public

    def _joiner(self, project: str, sandbox: str, serial: int) -> Key:
        return Key.derived(KeyKind.USER, self._keys.joiner.seed, f"joiner/{project}/{sandbox}/{serial}")

    def mint_worker(self, project: str, sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        """A token for a worker's public key, and the time at which the token expires. The worker has the private key.

        Raises `UnsafeNameError`, and `ContractError` if `public_key` is not a user's public key.
        """
        if not is_public_key(public_key, KeyKind.USER):
            raise ContractError(Code.INVALID_FIELD, "public_key: not a user's public nkey", field="public_key")
        return self._mint(Principal.WORKER, public_key, project=project, sandbox=sandbox, life=life)

    def _mint(
        self, principal: Principal, public_key: str, *, project: str, sandbox: str, life: float
    ) -> tuple[str, datetime]:
        signing = self._keys.worker if principal is Principal.WORKER else self._keys.joiner
        now = self._clock()
        expires = (now + timedelta(seconds=life)).replace(microsecond=0)
        body = claims.user(
            public_key,
            name=safe_sandbox(sandbox),
            account=self._account,
            principal=principal,
            project=safe_project(project),
            expires=int(expires.timestamp()),
        )
        return sign_claims(body, signing, int(now.timestamp())), expires


class Registrar:
    """Creates credentials of services, clients, subscribers, operators and set-up.

    A method returns the text of a credentials file. `life` is the time until the credential expires, in seconds.
    """

    def __init__(self, identity: HerdIdentity, clock: Clock = utc_now) -> None:
        self._identity = identity
        self._clock = clock

    def mint_service(self, service: Principal, key: Key | None = None) -> str:
        """A credential of a service, which does not expire. `key` is the service's existing key; None creates a key."""
        if service not in SERVICES:
            raise ValueError(f"{service} is not a service")
        key = key or Key.new(KeyKind.USER)
        body = claims.user(
            key.public,
            name=service.value,
            account=self._account(service),
            principal=service,
            permissions=for_service(service),
        )
        return self._credentials_text(body, key, SIGNING_KEYS[account_of(service)])

    def mint_person(self, role: Principal, name: str, *, project: str | None = None, life: float | None = None) -> str:
        """A credential of a client or a subscriber of one project, or of an operator. Without `life`, it never expires.

        Raises `UnsafeNameError`.
        """
        if role not in USER_PRINCIPALS:
            raise ValueError(f"{role} is not a role of a client, subscriber or operator")
        key = Key.new(KeyKind.USER)
        body = claims.user(
            key.public,
            name=safe_name(name),
            account=self._account(role),
            principal=role,
            project=safe_project(project or "") if role in OF_ONE_PROJECT else None,
            expires=None if life is None else int(self._clock().timestamp() + life),
            permissions=for_user(role, project, key.public),
        )
        return self._credentials_text(body, key, "people-signing")

    def mint_provisioner(self, life: float = SETUP_LIFETIME) -> str:
        """A credential for creating missing streams. It expires after an hour at the latest."""
        return self._setup_credentials(Account.PROVISIONER, for_provisioner(), min(life, SETUP_LIFETIME))

    def mint_stream_changer(self, life: float = SETUP_LIFETIME) -> str:
        """A credential for creating and changing streams and consumers. It expires after an hour at the latest."""
        return self._setup_credentials(Account.HERD, for_stream_changes(), min(life, SETUP_LIFETIME))

    def mint_stream_admin(self, life: float = 60, allowed: Permissions = WHOLE_API) -> str:
        """A credential for the JetStream API in the account of the streams, with the permissions `allowed`."""
        return self._setup_credentials(Account.HERD, allowed, life)

    def _setup_credentials(self, account: Account, allowed: Permissions, life: float) -> str:
        key = Key.new(KeyKind.USER)
        body = claims.user(
            key.public,
            name=PROVISIONER,
            account=self._identity.root_key(ACCOUNT_KEYS[account]).public,
            principal=Principal.OPERATOR,
            expires=int(self._clock().timestamp() + life),
            permissions=allowed,
        )
        return self._credentials_text(body, key, SIGNING_KEYS[account])

    def mint_probe(self) -> str:
        """A credential that may only publish the probe. The probe's acknowledgement shows that nats-server stores."""
        return self._store_guard_credentials(PROBE, PROBE_PERMISSIONS)

    def mint_watcher(self) -> str:
        """A credential that may only request the health of nats-servers."""
        return self._store_guard_credentials(WATCHER, WATCHER_PERMISSIONS)

    def _store_guard_credentials(self, name: str, allowed: Permissions) -> str:
        key = Key.new(KeyKind.USER)
        body = claims.user(
            key.public,
            name=name,
            account=self._identity.root_key(ACCOUNT_KEYS[Account.STORE_GUARD]).public,
            principal=Principal.OPERATOR,
            permissions=allowed,
        )
        return self._credentials_text(body, key, SIGNING_KEYS[Account.STORE_GUARD])

    def is_signed_for(self, claims_of_user: Mapping[str, Any], account: Account) -> bool:
        """Whether the claims name this account, and as their issuer the key that this version uses for the account."""
        signing = self._identity.root_key(SIGNING_KEYS[account]).public
        key = self._identity.root_key(ACCOUNT_KEYS[account]).public
        return claims_of_user["nats"].get("issuer_account") == key and claims_of_user.get("iss") == signing

    def needs_renewal(self, claims_of_user: Mapping[str, Any], seconds: float) -> bool:
        """Whether the claims of a temporary credential expire within `seconds`, or lack the time of expiry."""
        expires = claims_of_user.get("exp")
        return not expires or float(expires) - self._clock().timestamp() < seconds

    def _account(self, principal: Principal) -> str:
        return self._identity.root_key(ACCOUNT_KEYS[account_of(principal)]).public

    def _credentials_text(self, body: claims.Claims, key: Key, signing_key_name: str) -> str:
        token = sign_claims(body, self._identity.root_key(signing_key_name), int(self._clock().timestamp()))
        return credentials_text(token, key.seed)
