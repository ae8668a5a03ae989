"""Converts errors of a cluster to provider errors."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio.client.exceptions import ApiException, OpenApiException
from kubernetes_asyncio.config import ConfigException

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

VERSION_EXPIRED: Final = 410
"""The status for a resource version whose later changes the server no longer has."""
_FAULTS: Final = {
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
_ROLE_HINT: Final = "deploy/kubernetes/role.yaml has all that it needs"
_ADMISSION_REMEDIES: Final = (
    (r"violates PodSecurity", "label the namespace with a standard that allows it, or check what changes pods in it"),
    (
        r"(?:minimum|maximum) .* per (?:Container|Pod)",
        "change the LimitRange, or SANDBOX_MEMORY_GB, SANDHERD_KUBERNETES_CPU and SANDHERD_KUBERNETES_STORAGE_GB",
    ),
    (r"RuntimeClass", "check `runtime_class` in SANDHERD_KUBERNETES_PLACEMENT and SANDHERD_KUBERNETES_PLACEMENTS"),
    (r"PriorityClass", "check `priority_class` in SANDHERD_KUBERNETES_PLACEMENT and SANDHERD_KUBERNETES_PLACEMENTS"),
    (r"service account", "create it in the namespace, or check SANDHERD_KUBERNETES_SERVICE_ACCOUNT"),
    (r"denied (?:the )?request", "a policy of the cluster refuses it: check the policy, or what it requires of pods"),
)
"""Patterns of the messages with which admission control refuses an object, each with a remedy."""
_REFUSED: Final = re.compile(r"is forbidden|is invalid|denied (?:the )?request")
_EXEC_MESSAGES: Final = {
    403: "status 403; allow the spawner's role to create and get pods/exec: " + _ROLE_HINT,
    500: "status 500; its container does not run, or the kubelet of its node does not respond",
    502: "status 502; the kubelet of its node does not respond: check the node",
}
"""Messages for a refused command, by its status, because the client does not pass on the server's message."""


@contextmanager
def faults(what: str) -> Iterator[None]:
    """Raise errors of the block as `ProviderError`. `what`: the attempted action, for the message."""
    try:
        yield
    except ApiException as error:
        raise refusal(error.status or 0, status_of(error), error.headers or {}, what) from error
    except aiohttp.WSServerHandshakeError as error:
        status = {"message": _EXEC_MESSAGES[error.status]} if error.status in _EXEC_MESSAGES else {}
        raise refusal(error.status, status, error.headers or {}, what) from error
    except TimeoutError as error:
        raise ProviderError(ProviderFault.TIMED_OUT, f"kubernetes: {what}: timed out") from error
    except (OpenApiException, ConfigException) as error:
        raise ProviderError(ProviderFault.REFUSED, f"kubernetes: {what}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        message = f"kubernetes: {what}: the cluster can't be reached ({type(error).__name__}); check KUBECONFIG"
        raise ProviderError(ProviderFault.TRANSIENT, message) from error
    except (TypeError, ValueError, LookupError) as error:  # after an incomplete line of a watch, or a proxy's page
        message = f"kubernetes: {what}: the reply is not an API server's ({type(error).__name__}); check KUBECONFIG"
        raise ProviderError(ProviderFault.TRANSIENT, message) from error


def status_of(error: ApiException) -> Mapping[str, Any]:
    """The `Status` object in a reply's body; empty if the body is something else, such as the page of a proxy."""
    try:
        status = json.loads(error.body or "")
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def refusal(code: int, status: Mapping[str, Any], headers: Mapping[str, str], what: str) -> ProviderError:
    """Convert an error reply of the API server to a provider error. Pure."""
    message = str(status.get("message") or f"status {code}")
    fault = _FAULTS.get(code, ProviderFault.TRANSIENT)
    if _QUOTA.search(message):
        fault = ProviderFault.QUOTA
        message += "; raise the ResourceQuota, or lower SANDHERD_RUNTIME_LIMITS"
    elif code == 401:
        # Not the server's message: it may contain the rejected credential.
        message = "status 401; the credential was rejected: check KUBECONFIG, or the pod's service account"
    elif code == 403 or _REFUSED.search(message):
        message += _permission_hint(message)
    wait = _wait(status, headers) if fault is ProviderFault.RATE_LIMITED else None
    return ProviderError(fault, f"kubernetes: {what}: {message}", wait=wait)


def permanent_refusal(message: str, what: str) -> ProviderError | None:
    """The error for a refusal that the API server sent to a controller; None if a retry may succeed. Pure."""
    if not (_QUOTA.search(message) or _REFUSED.search(message)):
        return None
    return refusal(403, {"message": message}, {}, what)


def _permission_hint(message: str) -> str:
    denied = _DENIED.search(message)
    if denied:
        return f"; allow the spawner's role to {denied['verb']} {denied['resource']}: {_ROLE_HINT}"
    remedy = next((remedy for pattern, remedy in _ADMISSION_REMEDIES if re.search(pattern, message)), None)
    if remedy:
        return f"; {remedy}"
    return "" if _ROLE_HINT in message or _REFUSED.search(message) else f"; if a permission is missing: {_ROLE_HINT}"


def _wait(status: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    seconds = headers.get("Retry-After") or (status.get("details") or {}).get("retryAfterSeconds")
    try:
        return float(seconds) if seconds is not None else None
    except ValueError:
        return None
