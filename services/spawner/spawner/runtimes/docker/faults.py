"""Converts errors of the Docker Engine to provider errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
from aiodocker import DockerError

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_SERVER: Final = 500
_UNREACHABLE: Final = 900
"""The status that the client reports if it can't connect to the engine."""
_FULL: Final = re.compile(r"no space left on device|disk quota exceeded|cannot allocate memory", re.IGNORECASE)
_NO_NETWORK: Final = re.compile(r"network \S+ not found|could not find a network", re.IGNORECASE)
"""The error, with status 404, for a container whose network does not exist."""
_PERMANENT: Final = re.compile(
    r"executable file not found|no such file or directory|permission denied|invalid|not supported|unable to find user"
    r"|exec format error",
    re.IGNORECASE,
)
"""Errors, with status 500 or 400, that a retry will not resolve."""


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Raise errors of the block as `ProviderError`. `what`: the attempted action, for the message."""
    try:
        yield
    except DockerError as error:
        if error.status == _UNREACHABLE:
            raise _unreachable(what, error) from error
        raise ProviderError(fault_of(error), f"docker: {what}: {error.message}") from error
    except TimeoutError as error:
        raise ProviderError(ProviderFault.TIMED_OUT, f"docker: {what}: timed out") from error
    except (aiohttp.ClientError, OSError) as error:
        raise _unreachable(what, error) from error
    except (TypeError, ValueError, LookupError) as error:  # the client does not validate replies
        message = f"docker: {what}: the reply is not a Docker Engine's ({type(error).__name__}); check DOCKER_HOST"
        raise ProviderError(ProviderFault.TRANSIENT, message) from error


def _unreachable(what: str, error: Exception) -> ProviderError:
    message = f"docker: {what}: the engine can't be reached ({error}); start it, or set DOCKER_HOST"
    return ProviderError(ProviderFault.TRANSIENT, message)


def fault_of(error: DockerError) -> ProviderFault:
    """Classify an error of the engine. Pure."""
    if _FULL.search(error.message):
        return ProviderFault.QUOTA
    if _NO_NETWORK.search(error.message):
        return ProviderFault.REFUSED
    if error.status == _NOT_FOUND:
        return ProviderFault.NOT_FOUND
    if error.status == _CONFLICT:
        return ProviderFault.TRANSIENT
    if error.status < _SERVER or _PERMANENT.search(error.message):
        return ProviderFault.REFUSED
    return ProviderFault.TRANSIENT
