"""Encrypts values of secrets for the spawner before they are sent, so that no file of the broker has the plaintext.

It uses NaCl's sealed boxes (X25519, XSalsa20-Poly1305). The spawner's key pair is derived from one of its signing keys:
every replica has the same pair, and it need not be stored. The reply to `spawner.list_runtimes` has the public key.
"""

import base64
import binascii
import hmac
import json
from collections.abc import Mapping
from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

_PURPOSE: Final = b"sandherd sealed commands"


def private_key(seed: str) -> PrivateKey:
    """The spawner's key, from the seed of one of its signing keys."""
    return PrivateKey(hmac.digest(seed.encode(), _PURPOSE, "sha256"))


def public_text(key: PrivateKey) -> str:
    """The public key as clients receive it."""
    return base64.b64encode(bytes(key.public_key)).decode()


def seal(values: Mapping[str, str], public: str) -> str:
    """Encrypt values for the holder of the private key. Raises `ValueError` if `public` is not a public key."""
    try:
        box = SealedBox(PublicKey(base64.b64decode(public, validate=True)))
    except (binascii.Error, CryptoError, TypeError) as error:
        raise ValueError("not a public key of a spawner") from error
    return base64.b64encode(box.encrypt(json.dumps(dict(values)).encode())).decode()


def secret_member(project: str, name: str) -> str:
    """The key for the value of a named secret in `seal`: so the value can be stored only for this project and name."""
    return f"{project}/{name}"


def open_sealed(sealed: str, key: PrivateKey) -> dict[str, str] | None:
    """Decrypt values. Returns None if they were sealed for another key, or are not valid."""
    try:
        values = json.loads(SealedBox(key).decrypt(base64.b64decode(sealed, validate=True)))
    except (binascii.Error, CryptoError, TypeError, ValueError):
        return None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        return None
    return values
