"""What the Runtime API or an agent server says went wrong, in a provider's words. A key is never repeated."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import aiohttp
from pydantic import ValidationError

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

_BAD, _UNAUTHORIZED, _PAYMENT, _FORBIDDEN, _NOT_FOUND = 400, 401, 402, 403, 404
_TIMED_OUT, _CONFLICT, _OFTEN, _SERVER, _FULL = 408, 409, 429, 500, 507
_QUOTA: Final = re.compile(
    r"quota|limit (reached|exceeded)|exceeded .*limit|insufficient|no capacity|no space left|too many (runtimes|pods)",
    re.IGNORECASE,
)
_KEY: Final = re.compile(r"(api[_-]?key\W{0,4})([\w.~+/=-]{8,})", re.IGNORECASE)


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Whatever goes wrong in here is raised as `ProviderError`, which names `what` was tried."""
    try:
        yield
    except TimeoutError as error:
        raise ProviderError(ProviderFault.TIMED_OUT, f"remote: {what}: no answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        told = f"remote: {what}: nobody can be reached there ({type(error).__name__})"
        raise ProviderError(ProviderFault.TRANSIENT, told) from None  # its text names addresses
    except ValidationError as error:
        told = f"remote: {what}: an answer that is none of the Runtime API's: {_where(error)}"
        raise ProviderError(ProviderFault.TRANSIENT, told) from None  # its text repeats the answer, keys and all


def _where(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'all of it'}: {first['msg']}"


def refusal(what: str, status: int, text: str, headers: Mapping[str, str]) -> ProviderError:
    """An answer that is an error, as a provider's. Pure."""
    fault = fault_of(status, text)
    told = f"remote: {what}: {status} {without_keys(text)}".rstrip()
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        told += "; the key is not taken: SANDBOX_API_KEY, or the one that the Runtime API gave for a box"
    return ProviderError(fault, told, wait=_wait(headers) if fault is ProviderFault.RATE_LIMITED else None)


def fault_of(status: int, text: str) -> ProviderFault:
    """What kind of fault a status and its text are. Pure."""
    if status == _OFTEN:
        return ProviderFault.RATE_LIMITED
    if status in {_PAYMENT, _FULL} or (status not in {_UNAUTHORIZED, _NOT_FOUND} and _QUOTA.search(text)):
        return ProviderFault.QUOTA
    if status == _NOT_FOUND:
        return ProviderFault.NOT_FOUND
    if status in {_TIMED_OUT, _CONFLICT} or status >= _SERVER:
        return ProviderFault.TRANSIENT
    return ProviderFault.REFUSED


def without(text: str, keys: Iterable[str]) -> str:
    """These very keys are left out, whatever stands around them. Pure."""
    for key in keys:
        text = text.replace(key, "***")
    return text


def without_keys(text: str) -> str:
    """What looks like a key in a text is left out. Pure."""
    return _KEY.sub(r"\1***", text)


def _wait(headers: Mapping[str, str]) -> float | None:
    """For how long not to ask, where it is said in seconds."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
