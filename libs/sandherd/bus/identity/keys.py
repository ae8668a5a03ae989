"""Ed25519 keys in NATS's encoding (nkeys), and tokens signed with them."""

import base64
import binascii
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import nkeys
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}


class KeyKind(Enum):
    """The kind of a key; a public key begins with this letter."""

    OPERATOR = "O"
    ACCOUNT = "A"
    USER = "U"

    @property
    def prefix(self) -> int:
        """The first byte of a key of this kind."""
        prefixes: dict[KeyKind, int] = {
            KeyKind.OPERATOR: nkeys.PREFIX_BYTE_OPERATOR,
            KeyKind.ACCOUNT: nkeys.PREFIX_BYTE_ACCOUNT,
            KeyKind.USER: nkeys.PREFIX_BYTE_USER,
        }
        return prefixes[self]


@dataclass(frozen=True)
class Key:
    """A key pair. `seed` is the secret and is never shown."""

    seed: str = field(repr=False)
    public: str

    @classmethod
    def new(cls, kind: KeyKind) -> "Key":
        """A new random key."""
        return cls.from_seed(bytes(nkeys.encode_seed(os.urandom(32), kind.prefix)).decode())

    @classmethod
    def derived(cls, kind: KeyKind, secret: str, purpose: str) -> "Key":
        """The key that is derived from a secret for a purpose.

        It is always the same, and does not reveal the secret.
        """
        raw = hmac.digest(secret.encode(), purpose.encode(), "sha256")
        return cls.from_seed(bytes(nkeys.encode_seed(raw, kind.prefix)).decode())

    @classmethod
    def from_seed(cls, seed: str) -> "Key":
        """The key of a seed (`S…`). Raises `ValueError` for an invalid seed."""
        try:
            pair = nkeys.from_seed(bytearray(seed.strip().encode()))
            return cls(seed=seed.strip(), public=bytes(pair.public_key).decode())
        except (nkeys.NkeysError, binascii.Error, ValueError) as error:
            raise ValueError("not an nkey seed") from error

    @classmethod
    def read(cls, path: Path) -> "Key":
        """The key in a file. Raises `FileNotFoundError` or `ValueError`."""
        return cls.from_seed(path.read_text())

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        try:
            return bytes(pair.sign(message))
        finally:
            pair.wipe()


def is_public_key(text: str, kind: KeyKind) -> bool:
    """Whether a text is a valid public key of this kind, by its first letter, length and checksum."""
    try:
        raw = base64.b32decode(text)
    except (binascii.Error, ValueError, TypeError):
        return False
    if len(raw) != 35 or raw[0] != kind.prefix:
        return False
    check: int = nkeys.crc16(bytearray(raw[:-2]))
    return check == int.from_bytes(raw[-2:], "little")


def sign_claims(claims: Mapping[str, Any], key: Key, issued_at: int) -> str:
    """A signed JWT of these claims, with the fields that the broker requires: issuer, time, and a hash as its id."""
    body = {**claims, "iat": issued_at, "iss": key.public}
    body["jti"] = base64.b32encode(hashlib.sha256(_compact(body)).digest()).decode().rstrip("=")
    head = f"{_encode(_compact(_HEADER))}.{_encode(_compact(body))}"
    return f"{head}.{_encode(key.sign(head.encode()))}"


def read_claims(token: str) -> dict[str, Any]:
    """The claims of a JWT. Its signature is not verified: the broker does that. Raises `ValueError`."""
    try:
        _, body, _ = token.strip().split(".")
        claims = json.loads(_decode(body))
    except (ValueError, binascii.Error) as error:
        raise ValueError("not a JWT") from error
    if not isinstance(claims, dict):
        raise ValueError("not a JWT")  # noqa: TRY004  # for the caller it is a malformed text
    return claims


def read_verified_claims(token: str, issuer: str) -> dict[str, Any]:
    """The claims of a JWT that the holder of the public key `issuer` has signed. Raises `ValueError` for any other."""
    signed, _, signature = token.strip().rpartition(".")
    try:
        VerifyKey(base64.b32decode(issuer)[1:-2]).verify(signed.encode(), _decode(signature))
    except (ValueError, TypeError, CryptoError) as error:
        raise ValueError("not a JWT of this issuer") from error
    claims = read_claims(token)
    if claims.get("iss") != issuer:
        raise ValueError("not a JWT of this issuer")
    return claims


def _compact(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
