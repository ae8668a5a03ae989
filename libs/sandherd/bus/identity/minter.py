"""Creates credentials: `Minter` those of sandboxes, `Registrar` those of services, users and set-up.

Every name is checked here again: a worker named `*` would have the permissions of all sandboxes.
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
    LIFE,
    PROBE,
    PROBING,
    PROVISIONER,
    WATCHING,
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
    """Used by the spawner: creates credentials of sandboxes. `life` is in seconds; tokens expire at whole seconds."""

    def __init__(self, keys: SpawnerKeys, clock: Clock = utc_now) -> None:
        self._keys = keys
        self._clock = clock
        self._account: str = keys.account["sub"]

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        """A credentials file with which a sandbox may only request its worker's credential. Raises `UnsafeNameError`.

        All joiner credentials of one sandbox and serial number have the same key, so one revocation is enough.
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
        """A token for the public key of a worker, and the time at which it expires. The worker has the private key.

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
    """Used during set-up: creates credentials of services, clients, subscribers and operators, and of set-up itself.

    Those of services and, without `life`, those of users do not expire.
    """

    def __init__(self, identity: HerdIdentity, clock: Clock = utc_now) -> None:
        self._identity = identity
        self._clock = clock

    def mint_service(self, service: Principal, key: Key | None = None) -> str:
        """A credentials file for one of the services. `key` is the key that it had before; without it, a new one."""
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
        return self._file(body, key, SIGNING_KEYS[account_of(service)])

    def mint_person(self, role: Principal, name: str, *, project: str | None = None, life: float | None = None) -> str:
        """A credentials file for a client or a subscriber of one project, or for an operator.

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
        return self._file(body, key, "people-signing")

    def mint_provisioner(self, life: float = LIFE) -> str:
        """A credentials file for creating missing streams. `life` is in seconds, at most an hour."""
        return self._setup_credentials(Account.PROVISIONER, for_provisioner(), min(life, LIFE))

    def mint_stream_changer(self, life: float = LIFE) -> str:
        """A credentials file for creating and changing streams and consumers. `life` is in seconds, at most an hour."""
        return self._setup_credentials(Account.HERD, for_stream_changes(), min(life, LIFE))

    def mint_stream_admin(self, life: float = 60, allowed: Permissions = WHOLE_API) -> str:
        """A credentials file for the JetStream API in the account of the streams. `life` is in seconds."""
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
        return self._file(body, key, SIGNING_KEYS[account])

    def mint_probe(self) -> str:
        """A credentials file that only allows publishing the probe that shows whether nats-server stores messages."""
        return self._store_guard_credentials(PROBE, PROBING)

    def mint_watcher(self) -> str:
        """A credentials file that only allows requesting the health of servers."""
        return self._store_guard_credentials(WATCHER, WATCHING)

    def _store_guard_credentials(self, name: str, allowed: Permissions) -> str:
        key = Key.new(KeyKind.USER)
        body = claims.user(
            key.public,
            name=name,
            account=self._identity.root_key(ACCOUNT_KEYS[Account.STORE_GUARD]).public,
            principal=Principal.OPERATOR,
            permissions=allowed,
        )
        return self._file(body, key, SIGNING_KEYS[Account.STORE_GUARD])

    def vouched(self, token: Mapping[str, Any], account: Account) -> bool:
        """Whether a user's claims are for this account, and name the key that this version signs its users with."""
        signing = self._identity.root_key(SIGNING_KEYS[account]).public
        key = self._identity.root_key(ACCOUNT_KEYS[account]).public
        return token["nats"].get("issuer_account") == key and token.get("iss") == signing

    def expires_within(self, token: Mapping[str, Any], seconds: float) -> bool:
        """Whether a user's claims expire within `seconds`, or never expire."""
        expires = token.get("exp")
        return not expires or float(expires) - self._clock().timestamp() < seconds

    def _account(self, principal: Principal) -> str:
        return self._identity.root_key(ACCOUNT_KEYS[account_of(principal)]).public

    def _file(self, body: claims.Claims, key: Key, signing: str) -> str:
        token = sign_claims(body, self._identity.root_key(signing), int(self._clock().timestamp()))
        return credentials_text(token, key.seed)
