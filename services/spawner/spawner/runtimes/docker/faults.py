"""What the Docker Engine says went wrong, in a provider's words."""

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
_UNREACHED: Final = 900
"""The client's own, for an engine that it can't connect to."""
_FULL: Final = re.compile(r"no space left on device|disk quota exceeded|cannot allocate memory", re.IGNORECASE)
_NO_NETWORK: Final = re.compile(r"network \S+ not found|could not find a network", re.IGNORECASE)
"""What it says when a container is started that was made for a network that is not there: with 404."""
_WRONG: Final = re.compile(
    r"executable file not found|no such file or directory|permission denied|invalid|not supported|unable to find user"
    r"|exec format error",
    re.IGNORECASE,
)
"""What the engine answers with 500 or 400 though another try would end the same."""


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Whatever goes wrong in here is raised as `ProviderError`, which names `what` was tried."""
    try:
        yield
    except DockerError as error:
        if error.status == _UNREACHED:
            raise _away(what, error) from error
        raise ProviderError(fault_of(error), f"docker: {what}: {error.message}") from error
    except TimeoutError as error:
        raise ProviderError(ProviderFault.TIMED_OUT, f"docker: {what}: no answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise _away(what, error) from error
    except (TypeError, ValueError, LookupError) as error:  # the client does not look at what it is told
        told = f"docker: {what}: an answer that is none of an engine's ({type(error).__name__}); look at DOCKER_HOST"
        raise ProviderError(ProviderFault.TRANSIENT, told) from error


def _away(what: str, error: Exception) -> ProviderError:
    told = f"docker: {what}: the engine can't be reached ({error}); start it, or set DOCKER_HOST"
    return ProviderError(ProviderFault.TRANSIENT, told)


def fault_of(error: DockerError) -> ProviderFault:
    """What kind of fault an error of the engine is. Pure."""
    if _FULL.search(error.message):
        return ProviderFault.QUOTA
    if _NO_NETWORK.search(error.message):
        return ProviderFault.REFUSED
    if error.status == _NOT_FOUND:
        return ProviderFault.NOT_FOUND
    if error.status == _CONFLICT:
        return ProviderFault.TRANSIENT
    if error.status < _SERVER or _WRONG.search(error.message):
        return ProviderFault.REFUSED
    return ProviderFault.TRANSIENT
