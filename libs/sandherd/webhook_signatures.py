"""Signatures of webhooks, as Standard Webhooks defines them (`v1`, HMAC-SHA-256). Pure."""

import base64
import binascii
import hmac
import secrets
from typing import Final

PREFIX: Final = "whsec_"
_BYTES: Final = 32


def new_secret() -> str:
    """A new secret: `whsec_` and 256 random bits in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def signature(secret: str, identifier: str, timestamp: str, body: bytes) -> str:
    """The signature `v1,…` of a webhook with this id, and this time in Unix seconds."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = secret.encode()
    content = f"{identifier}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
