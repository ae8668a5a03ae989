"""The credential of a connection, and ids derived from its seed."""

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nkeys

from sandherd.bus.errors import BusError
from sandherd.contracts.names import DerivedIds

_DERIVATION_PURPOSE: Final = b"sandherd ids of events"


@dataclass(frozen=True)
class ConnectionIdentity:
    """The credential that a connection authenticates with: functions that return its token and the seed of its key.

    They are called at every connect, so that a renewed credential is used without a restart.
    """

    jwt: Callable[[], str] | None = None
    seed: Callable[[], str] | None = None

    @classmethod
    def anonymous(cls) -> "ConnectionIdentity":
        """No credential, for a broker without authentication."""
        return cls()

    @classmethod
    def file(cls, path: Path) -> "ConnectionIdentity":
        """A credentials file as the NATS tools write it. Raises `FileNotFoundError` at the first connect."""
        return cls(lambda: _section(path, "NATS USER JWT"), lambda: _section(path, "USER NKEY SEED"))

    @classmethod
    def renewing(cls, jwt: Callable[[], str], seed: str) -> "ConnectionIdentity":
        """A fixed key with a JWT that is renewed."""
        return cls(jwt, lambda: seed)

    def derived_ids(self) -> DerivedIds:
        """The generator of ids from this seed. All replicas of a service derive the same ids, which others can't guess.

        Without a credential the ids can be guessed, but then the broker has no authentication either.
        """
        seed = self.seed() if self.seed else ""
        return DerivedIds(hmac.digest(seed.encode(), _DERIVATION_PURPOSE, "sha256"))

    def options(self) -> dict[str, Any]:
        """The options of `nats.connect` for this credential."""
        if self.jwt is None or self.seed is None:
            return {}
        return {"user_jwt_cb": self._read_jwt, "signature_cb": self._sign}

    def _read_jwt(self) -> bytearray:
        assert self.jwt is not None
        return bytearray(self.jwt().encode())

    def _sign(self, nonce: str) -> bytes:
        assert self.seed is not None
        pair = nkeys.from_seed(bytearray(self.seed().encode()))
        try:
            return base64.b64encode(pair.sign(nonce.encode()))
        finally:
            pair.wipe()


def _section(path: Path, title: str) -> str:
    """The text between `-----BEGIN <title>-----` and its end."""
    text = path.read_text()
    _, header, rest = text.partition(f"-----BEGIN {title}-----")
    if not header:
        raise BusError(f"{path}: no {title} in this credentials file; create it again with `sandherd up`")
    return rest.partition("------END")[0].partition("-----END")[0].strip()
