"""What a cluster says went wrong, in a provider's words."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio.client.exceptions import ApiException, OpenApiException
from kubernetes_asyncio.config import ConfigException

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

GONE: Final = 410
_KINDS: Final = {
    400: ProviderFault.REFUSED,
    401: ProviderFault.REFUSED,
    403: ProviderFault.REFUSED,
    404: ProviderFault.NOT_FOUND,
    405: ProviderFault.REFUSED,
    409: ProviderFault.TRANSIENT,
    413: ProviderFault.REFUSED,
    415: ProviderFault.REFUSED,
    422: ProviderFault.REFUSED,
    429: ProviderFault.RATE_LIMITED,
    504: ProviderFault.TIMED_OUT,
}
_QUOTA: Final = re.compile(r"exceeded quota|insufficient quota", re.IGNORECASE)
_DENIED: Final = re.compile(r"cannot (?P<verb>\S+) resource \"(?P<resource>[^\"]+)\"")
_ROLE: Final = "deploy/kubernetes/role.yaml has all that it needs"


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Whatever goes wrong in here is raised as `ProviderError`, which names `what` was tried."""
    try:
        yield
    except ApiException as error:
        raise refusal(error.status or 0, status_of(error), error.headers or {}, what) from error
    except aiohttp.WSServerHandshakeError as error:
        raise refusal(error.status, {}, error.headers or {}, what) from error
    except TimeoutError as error:
        raise ProviderError(ProviderFault.TIMED_OUT, f"kubernetes: {what}: no answer in time") from error
    except (OpenApiException, ConfigException) as error:
        raise ProviderError(ProviderFault.REFUSED, f"kubernetes: {what}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        told = f"kubernetes: {what}: the cluster can't be reached ({type(error).__name__}); look at KUBECONFIG"
        raise ProviderError(ProviderFault.TRANSIENT, told) from error
    except (TypeError, ValueError, LookupError) as error:  # half a line of a watch, or somebody's page
        told = f"kubernetes: {what}: an answer that is none of a cluster's ({type(error).__name__}); look at KUBECONFIG"
        raise ProviderError(ProviderFault.TRANSIENT, told) from error


def status_of(error: ApiException) -> Mapping[str, Any]:
    """The `Status` that an answer's body is; an empty one for what is none, as a proxy on the way says it."""
    try:
        found = json.loads(error.body or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def refusal(code: int, status: Mapping[str, Any], headers: Mapping[str, str], what: str) -> ProviderError:
    """An answer of the API server that is an error. Pure."""
    said = str(status.get("message") or f"status {code}")
    fault = _KINDS.get(code, ProviderFault.TRANSIENT)
    if _QUOTA.search(said):
        fault = ProviderFault.QUOTA
        said += "; raise the ResourceQuota, or lower SANDHERD_RUNTIME_LIMITS"
    elif code == 401:
        # In words of our own: whoever does not take a credential may repeat it.
        said = "status 401; the credential is not taken: look at KUBECONFIG, or at the pod's service account"
    elif code == 403:
        said += _right(said)
    wait = _wait(status, headers) if fault is ProviderFault.RATE_LIMITED else None
    return ProviderError(fault, f"kubernetes: {what}: {said}", wait=wait)


def _right(said: str) -> str:
    found = _DENIED.search(said)
    if found:
        return f"; let the spawner's role {found['verb']} {found['resource']}: {_ROLE}"
    return f"; if that is for want of a right: {_ROLE}" if "admission" not in said else ""


def _wait(status: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    told = headers.get("Retry-After") or (status.get("details") or {}).get("retryAfterSeconds")
    try:
        return float(told) if told is not None else None
    except ValueError:
        return None
