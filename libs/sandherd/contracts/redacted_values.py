"""Removes the values of secrets from JSON-like values. Pure."""

from collections.abc import Iterable
from typing import Any, Final

MARK: Final = "[redacted]"
MIN_SECRET_LENGTH: Final = 4
"""Minimum length of a value that is treated as secret text: a shorter one can't be distinguished from ordinary text."""


def redacted(value: Any, secrets: Iterable[str], min_length: int = MIN_SECRET_LENGTH) -> Any:
    """The value without these secrets in its strings and keys. No string gets longer.

    Secrets of fewer than `min_length` characters are not removed.
    """
    # The longest first: a secret that begins with another one would otherwise be removed only in part.
    ordered = sorted({one for one in secrets if len(one) >= min_length}, key=len, reverse=True)
    return _redacted(value, ordered) if ordered else value


def _redacted(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MARK[: len(secret)])
        return value
    if isinstance(value, dict):
        return {_redacted(name, secrets): _redacted(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, secrets) for item in value]
    return value
