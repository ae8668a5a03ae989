"""The keys of one herd on disk: made once, read by whoever mints with them.

    <identity>/root/     keys that only setting up needs: operator, accounts, and the key that signs services and people
    <identity>/spawner/  what the spawner holds: keys for workers, joiners and the account's next token
    <identity>/broker/   tokens that the broker is started with; nothing secret

Every directory is 0700 and every file 0600.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.bus.identity import claims
from sandherd.bus.identity.claims import Claims
from sandherd.bus.identity.credentials import credentials_text, write_secret
from sandherd.bus.identity.keys import Key, Kind, read_claims, sign_claims

_ROOT_KEYS: Final = {
    "operator": Kind.OPERATOR,
    "system": Kind.ACCOUNT,
    "system-signing": Kind.ACCOUNT,
    "account": Kind.ACCOUNT,
    "people": Kind.ACCOUNT,
}
_SPAWNER_KEYS: Final = {
    "operator-signing": Kind.OPERATOR,
    "worker": Kind.ACCOUNT,
    "joiner": Kind.ACCOUNT,
}
CLAIMS_CREDENTIALS: Final = "claims.creds"


@dataclass(frozen=True)
class SpawnerKeys:
    """What the spawner mints and revokes with. `account` is the account's claims without revocations."""

    operator_signing: Key
    worker: Key
    joiner: Key
    account: Claims
    claims_credentials: Path

    @classmethod
    def read(cls, directory: Path) -> "SpawnerKeys":
        """The keys in `<identity>/spawner`. Raises `FileNotFoundError` or `ValueError`."""
        return cls(
            operator_signing=Key.read(directory / "operator-signing.nk"),
            worker=Key.read(directory / "worker.nk"),
            joiner=Key.read(directory / "joiner.nk"),
            account=json.loads((directory / "account.json").read_text()),
            claims_credentials=directory / CLAIMS_CREDENTIALS,
        )


@dataclass(frozen=True)
class BrokerTokens:
    """What the broker is started with: the operator's token, and each account's by its public key."""

    operator: str
    system_account: str
    accounts: dict[str, str]


class Identity:
    """The identity material of one herd, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.spawner = directory / "spawner"
        self.broker = directory / "broker"

    @property
    def exists(self) -> bool:
        """Whether it was made here before."""
        return (self.broker / "operator.jwt").exists()

    def create(self, now: int) -> None:
        """Make all keys and tokens, or keep those that are there. `now` is the Unix second that tokens are made in."""
        for directory in (self.directory, self.root, self.spawner, self.broker):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            directory.chmod(0o700)
        for directory, kinds in ((self.root, _ROOT_KEYS), (self.spawner, _SPAWNER_KEYS)):
            for name, kind in kinds.items():
                _keep_or_make(directory / f"{name}.nk", kind)
        self._write_tokens(now)

    def root_key(self, name: str) -> Key:
        """A key that only setting up needs."""
        return Key.read(self.root / f"{name}.nk")

    def tokens(self, held: str | None, now: int) -> BrokerTokens:
        """What the broker is started with. `held` is the account's token that it has from before, if any.

        The account is signed anew only if this version's permissions differ, and then with the revocations that were
        in force: of two tokens made in one second the broker believes the one it is started with.
        """
        system, account = self.root_key("system").public, self.root_key("account").public
        if json.loads((self.spawner / "account.json").read_text()) != self._account_claims():
            self._write_account(now, revocations(held) if held else {})
            held = None
        accounts = {
            system: (self.broker / "system.jwt").read_text(),
            account: held or (self.broker / "account.jwt").read_text(),
        }
        return BrokerTokens((self.broker / "operator.jwt").read_text(), system, accounts)

    def _write_tokens(self, now: int) -> None:
        if self.exists:
            return
        signing, system = Key.read(self.spawner / "operator-signing.nk"), self.root_key("system").public
        system_signing, pusher = self.root_key("system-signing"), Key.new(Kind.USER)
        pushing = sign_claims(claims.claims_pusher(pusher.public, system), system_signing, now)
        write_secret(self.spawner / CLAIMS_CREDENTIALS, credentials_text(pushing, pusher.seed))
        account = sign_claims(claims.system_account(system, system_signing.public), signing, now)
        write_secret(self.broker / "system.jwt", account)
        self._write_account(now, {})
        operator = self.root_key("operator")
        token = sign_claims(claims.operator(operator.public, signing.public, system), operator, now)
        # Last, because its presence says that everything else is there.
        write_secret(self.broker / "operator.jwt", token)

    def _account_claims(self) -> Claims:
        return claims.herd_account(
            self.root_key("account").public,
            self.root_key("people").public,
            Key.read(self.spawner / "worker.nk").public,
            Key.read(self.spawner / "joiner.nk").public,
        )

    def _write_account(self, now: int, revoked: Mapping[str, int]) -> None:
        account, signing = self._account_claims(), Key.read(self.spawner / "operator-signing.nk")
        token = sign_claims(claims.with_revocations(account, revoked), signing, now)
        write_secret(self.broker / "account.jwt", token)
        write_secret(self.spawner / "account.json", json.dumps(account))


def revocations(token: str) -> dict[str, int]:
    """The list in an account's token: public key → Unix second."""
    return dict(read_claims(token)["nats"].get("revocations") or {})


def _keep_or_make(path: Path, kind: Kind) -> None:
    if not path.exists():
        write_secret(path, Key.new(kind).seed)
