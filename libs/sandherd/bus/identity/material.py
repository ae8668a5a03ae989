"""The keys and tokens of one herd in its identity directory. Keys are created once.

    root     keys that are used during set-up only: of the operator and the accounts, and keys that sign the credentials
             of services, clients and operators
    spawner  keys of the spawner: they sign the credentials of workers and joiners, and new JWTs of the accounts of
             sandboxes and of users. A joiner's credential may only request a worker's credential
    broker   tokens that the broker is started with; they are not secret

Every directory has the mode 0700, and every file 0600.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.bus.auth.accounts import Account
from sandherd.bus.identity import claims
from sandherd.bus.identity.capacity import Capacity
from sandherd.bus.identity.claims import Claims
from sandherd.bus.identity.credentials import credentials_text, write_secret
from sandherd.bus.identity.keys import Key, KeyKind, read_claims, sign_claims
from sandherd.private_files import make_directory

_ROOT_KEYS: Final = {
    "operator": KeyKind.OPERATOR,
    "system": KeyKind.ACCOUNT,
    "system-signing": KeyKind.ACCOUNT,
    "herd": KeyKind.ACCOUNT,
    "streams-signing": KeyKind.ACCOUNT,
    "services": KeyKind.ACCOUNT,
    "event-ingest": KeyKind.ACCOUNT,
    "monitor": KeyKind.ACCOUNT,
    "message-relay": KeyKind.ACCOUNT,
    "gateway": KeyKind.ACCOUNT,
    "provisioner": KeyKind.ACCOUNT,
    "store-guard": KeyKind.ACCOUNT,
    "sandboxes": KeyKind.ACCOUNT,
    "people": KeyKind.ACCOUNT,
    "people-signing": KeyKind.ACCOUNT,
}
ACCOUNT_KEYS: Final = {
    Account.HERD: "herd",
    Account.EVENT_INGEST: "event-ingest",
    Account.MONITOR: "monitor",
    Account.MESSAGE_RELAY: "message-relay",
    Account.GATEWAY: "gateway",
    Account.PROVISIONER: "provisioner",
    Account.STORE_GUARD: "store-guard",
    Account.SANDBOXES: "sandboxes",
    Account.PEOPLE: "people",
}
"""The key of each account, by its name in `root`."""
SIGNING_KEYS: Final = {
    Account.HERD: "streams-signing",
    Account.EVENT_INGEST: "services",
    Account.MONITOR: "services",
    Account.MESSAGE_RELAY: "services",
    Account.GATEWAY: "services",
    Account.PROVISIONER: "services",
    Account.STORE_GUARD: "services",
    Account.PEOPLE: "people-signing",
}
"""The key that signs the users of each account, by its name in `root`. The spawner's keys sign those of `SANDBOXES`.

Earlier versions signed the users of `HERD` with the key `herd-signing`, among them a provisioner without an expiry.
Signatures by that key are no longer accepted."""
PUSHED_ACCOUNTS: Final = ("system", *(name for name in ACCOUNT_KEYS.values() if name != "sandboxes"))
"""The accounts whose JWTs are pushed to the broker during set-up. An account is pushed before those that import from
it.

The spawner pushes the JWT of `SANDBOXES`."""
_SPAWNER_KEYS: Final = {
    "operator-signing": KeyKind.OPERATOR,
    "worker": KeyKind.ACCOUNT,
    "joiner": KeyKind.ACCOUNT,
}
CLAIMS_CREDENTIALS: Final = "claims.creds"
"""The spawner's credential to push accounts' JWTs to the broker."""
_PEOPLE_CLAIMS: Final = "people.json"
CONNECTIONS_CREDENTIALS: Final = "connections.creds"
"""The spawner's credential to list and close connections of the broker."""


@dataclass(frozen=True)
class SpawnerKeys:
    """The keys with which the spawner issues and revokes credentials.

    `account` has the claims of the sandboxes' account without revocations. `people` has those of the users' account; it
    is None if a version created the keys that could not revoke users' credentials.
    """

    operator_signing: Key
    worker: Key
    joiner: Key
    account: Claims
    claims_credentials: Path
    connections_credentials: Path
    people: Claims | None = None

    @classmethod
    def read(cls, directory: Path) -> "SpawnerKeys":
        """The keys in `directory`, the folder `spawner` of an identity. Raises `FileNotFoundError` or `ValueError`."""
        people = directory / _PEOPLE_CLAIMS
        return cls(
            people=json.loads(people.read_text()) if people.exists() else None,
            operator_signing=Key.read(directory / "operator-signing.nk"),
            worker=Key.read(directory / "worker.nk"),
            joiner=Key.read(directory / "joiner.nk"),
            account=json.loads((directory / "account.json").read_text()),
            claims_credentials=directory / CLAIMS_CREDENTIALS,
            connections_credentials=directory / CONNECTIONS_CREDENTIALS,
        )


@dataclass(frozen=True)
class BrokerTokens:
    """The tokens that the broker is started with: the operator's, and each account's by its public key."""

    operator: str
    system_account: str
    accounts: dict[str, str]


class HerdIdentity:
    """The keys and tokens of one herd, in a directory."""

    def __init__(self, directory: Path, capacity: Capacity | None = None) -> None:
        self.directory = directory
        self.capacity = capacity or Capacity()
        self.root = directory / "root"
        self.spawner = directory / "spawner"
        self.broker = directory / "broker"

    @property
    def exists(self) -> bool:
        """Whether the keys and tokens were created in this directory before."""
        return (self.broker / "operator.jwt").exists()

    def create(self, now: int) -> None:
        """Create missing keys and tokens. Existing ones are not changed.

        `now` is the Unix second at which tokens are issued.
        """
        for directory in (self.directory, self.root, self.spawner, self.broker):
            make_directory(directory)
            directory.chmod(0o700)
        for directory, kinds in ((self.root, _ROOT_KEYS), (self.spawner, _SPAWNER_KEYS)):
            for name, kind in kinds.items():
                _ensure_key(directory / f"{name}.nk", kind)
        self._write_tokens(now)
        self._write_connection_watcher(now)

    def root_key(self, name: str) -> Key:
        """A key of the directory `root`, by its name."""
        return Key.read(self.root / f"{name}.nk")

    def tokens(self, current_sandboxes: str | None, now: int, current_people: str | None = None) -> BrokerTokens:
        """The JWTs to start the broker with.

        `current_sandboxes` and `current_people` are the JWTs of the sandboxes' and the users' account that the broker
        already has, or None. A JWT is signed again only if this version declares other claims for the account. The new
        JWTs of these two accounts contain the revocations of the current ones. Otherwise revoked credentials could be
        valid again: of two JWTs issued in the same second, the broker uses the one that it is started with.
        """
        tokens_by_account = {"sandboxes": current_sandboxes, "people": current_people}
        for name, declared in self._account_claims().items():
            if self._stored_claims(name) != declared:
                token = tokens_by_account.pop(name, None)
                self._write_account(name, declared, now, revocations(token) if token else {})
        accounts = {
            self.root_key(name).public: tokens_by_account.get(name) or (self.broker / f"{name}.jwt").read_text()
            for name in ("system", *ACCOUNT_KEYS.values())
        }
        return BrokerTokens((self.broker / "operator.jwt").read_text(), self.root_key("system").public, accounts)

    def _write_tokens(self, now: int) -> None:
        if self.exists:
            return
        signing, system = Key.read(self.spawner / "operator-signing.nk"), self.root_key("system").public
        system_signing, pusher = self.root_key("system-signing"), Key.new(KeyKind.USER)
        pushing = sign_claims(claims.claims_pusher(pusher.public, system), system_signing, now)
        write_secret(self.spawner / CLAIMS_CREDENTIALS, credentials_text(pushing, pusher.seed))
        for name, body in self._account_claims().items():
            self._write_account(name, body, now, {})
        operator = self.root_key("operator")
        token = sign_claims(claims.operator(operator.public, signing.public, system), operator, now)
        # This file is written last, so if it exists, all others exist.
        write_secret(self.broker / "operator.jwt", token)

    def _write_connection_watcher(self, now: int) -> None:
        """Write the spawner's credential for connections, if it is missing: earlier versions did not create it."""
        path = self.spawner / CONNECTIONS_CREDENTIALS
        if path.exists():
            return
        key, system = Key.new(KeyKind.USER), self.root_key("system").public
        token = sign_claims(claims.connection_watcher(key.public, system), self.root_key("system-signing"), now)
        write_secret(path, credentials_text(token, key.seed))

    def _account_claims(self) -> dict[str, Claims]:
        keys = {account: self.root_key(name).public for account, name in ACCOUNT_KEYS.items()}
        worker, joiner = (Key.read(self.spawner / f"{name}.nk").public for name in ("worker", "joiner"))
        services, system = self.root_key("services").public, self.root_key("system").public
        return {
            "system": claims.system_account(system, self.root_key("system-signing").public),
            "herd": claims.herd_account(keys, self.root_key("streams-signing").public, self.capacity),
            **{
                ACCOUNT_KEYS[account]: claims.service_account(account, keys, services, self.capacity)
                for account, signing in SIGNING_KEYS.items()
                if signing == "services" and account is not Account.STORE_GUARD
            },
            "store-guard": claims.store_guard_account(keys, system, services, self.capacity),
            "people": claims.people_account(keys, self.root_key("people-signing").public, self.capacity),
            "sandboxes": claims.sandboxes_account(keys, worker, joiner, self.capacity),
        }

    def _claims_paths(self, name: str) -> tuple[Path, ...]:
        """The files that contain an account's claims.

        The claims of the sandboxes' and the users' account are in the folder `spawner`, because the spawner signs them
        again at each revocation. Those of the users' account are also in `root`, where earlier versions read them.
        """
        root_file = self.root / f"{name}.json"
        signed = {"sandboxes": (self.spawner / "account.json",), "people": (self.spawner / _PEOPLE_CLAIMS, root_file)}
        return signed.get(name, (root_file,))

    def _stored_claims(self, name: str) -> Claims | None:
        """The claims in an account's files; None if a file is missing, or if another version has changed one."""
        paths = self._claims_paths(name)
        first, *others = [dict(json.loads(path.read_text())) if path.exists() else None for path in paths]
        return first if all(other == first for other in others) else None

    def _write_account(self, name: str, account: Claims, now: int, revoked: Mapping[str, int]) -> None:
        signing = Key.read(self.spawner / "operator-signing.nk")
        token = sign_claims(claims.with_revocations(account, revoked), signing, now)
        write_secret(self.broker / f"{name}.jwt", token)
        for path in self._claims_paths(name):
            write_secret(path, json.dumps(account))


def revocations(token: str) -> dict[str, int]:
    """The revocations in an account's JWT: by public key, the second until which tokens issued for it are revoked."""
    return dict(read_claims(token)["nats"].get("revocations") or {})


def _ensure_key(path: Path, kind: KeyKind) -> None:
    if not path.exists():
        write_secret(path, Key.new(kind).seed)
