"""Converts errors of the Runtime API and of agent servers to provider errors, whose messages never contain a key."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import aiohttp
from pydantic import ValidationError

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

_BAD, _UNAUTHORIZED, _PAYMENT_REQUIRED, _FORBIDDEN, _NOT_FOUND = 400, 401, 402, 403, 404
_TIMED_OUT, _CONFLICT, _TOO_MANY, _SERVER, _NO_STORAGE = 408, 409, 429, 500, 507
_QUOTA: Final = re.compile(
    r"quota|limit (reached|exceeded)|exceeded .*limit|insufficient|no capacity|no space left|too many (runtimes|pods)",
    re.IGNORECASE,
)
_KEY: Final = re.compile(r"(api[_-]?key\W{0,4})([\w.~+/=-]{8,})", re.IGNORECASE)


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Raise errors of the block as `ProviderError`. `what`: the attempted action, for the message."""
    try:
        yield
    except TimeoutError as error:
        raise ProviderError(ProviderFault.TIMED_OUT, f"remote: {what}: timed out") from error
    except (aiohttp.ClientError, OSError) as error:
        message = f"remote: {what}: the server can't be reached ({type(error).__name__})"
        raise ProviderError(ProviderFault.TRANSIENT, message) from None  # its text contains addresses
    except ValidationError as error:
        message = f"remote: {what}: the reply is not the Runtime API's: {_location(error)}"
        raise ProviderError(ProviderFault.TRANSIENT, message) from None  # its text contains the reply with its keys


def _location(error: ValidationError) -> str:
    """The field of the first error, and what is wrong with it."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'all of it'}: {first['msg']}"


def refusal(what: str, status: int, text: str, headers: Mapping[str, str]) -> ProviderError:
    """Convert an error reply to a provider error. Pure."""
    fault = fault_of(status, text)
    message = f"remote: {what}: {status} {mask_keys(text)}".rstrip()
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        message += "; the key was rejected: check SANDBOX_API_KEY, or the key that the Runtime API issued for a box"
    return ProviderError(fault, message, wait=_wait(headers) if fault is ProviderFault.RATE_LIMITED else None)


def fault_of(status: int, text: str) -> ProviderFault:
    """The fault for the status and the text of an error reply. Pure."""
    if status == _TOO_MANY:
        return ProviderFault.RATE_LIMITED
    if status in {_PAYMENT_REQUIRED, _NO_STORAGE} or (
        status not in {_UNAUTHORIZED, _NOT_FOUND} and _QUOTA.search(text)
    ):
        return ProviderFault.QUOTA
    if status == _NOT_FOUND:
        return ProviderFault.NOT_FOUND
    if status in {_TIMED_OUT, _CONFLICT} or status >= _SERVER:
        return ProviderFault.TRANSIENT
    return ProviderFault.REFUSED


def mask(text: str, keys: Iterable[str]) -> str:
    """Mask these keys in a text. Pure."""
    for key in keys:
        text = text.replace(key, "***")
    return text


def mask_keys(text: str) -> str:
    """Mask everything in a text that has the form of a key. Pure."""
    return _KEY.sub(r"\1***", text)


def _wait(headers: Mapping[str, str]) -> float | None:
    """The delay before a retry, if the header gives it in seconds."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
