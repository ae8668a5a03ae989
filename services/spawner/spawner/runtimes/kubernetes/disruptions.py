"""Why a cluster ends a pod: evictions, preemptions, lost nodes, deletions, each with its remedy. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from spawner.runtimes.kubernetes.manifests import Json

ENDED: Final = frozenset({"Failed", "Succeeded"})
"""The phases of a pod that its cluster has ended: it is never restarted."""
_LOST_NODE: Final = "the node of {name} is lost or does not respond, and the sandbox's data is lost with it"
_DISRUPTED: Final = {
    "TerminationByKubelet": (
        "was evicted by its node",
        "raise SANDBOX_MEMORY_GB or SANDHERD_KUBERNETES_STORAGE_GB, or add nodes to the cluster",
    ),
    "PreemptionByScheduler": (
        "was preempted by a pod of a higher priority",
        "set a `priority_class` in SANDHERD_KUBERNETES_PLACEMENT, or add nodes to the cluster",
    ),
    "EvictionByEvictionAPI": (
        "was evicted on request, as when its node is drained",
        "drain a node when its sandboxes have ended: docs/kubernetes.md",
    ),
    "DeletionByTaintManager": ("was evicted by a taint of its node", "add a toleration, or check the node"),
    "DeletionByPodGC": ("was deleted because its node no longer exists", "check the node"),
}
"""What the reasons of a pod's condition `DisruptionTarget` mean, each with its remedy."""
_SHUTDOWN: Final = re.compile(r"node shutdown", re.IGNORECASE)


def loss_reason(pod: Json) -> str | None:
    """Why the pod is lost permanently; None if it is not."""
    status, meta = pod.get("status") or {}, pod["metadata"]
    phase, why, name = status.get("phase"), status.get("reason") or "", meta["name"]
    condition = _disruption_target(pod)
    message = status.get("message") or (condition or {}).get("message") or ""
    lost = (
        why == "NodeLost" or phase == "Unknown" or _has_reason(condition, "DeletionByTaintManager", "DeletionByPodGC")
    )
    if lost and (meta.get("deletionTimestamp") or phase in {"Unknown", "Failed"}):
        return _LOST_NODE.format(name=name) + (f": {message}" if message else "")
    if phase not in ENDED:
        return None
    if condition or why == "Evicted":
        return f"{name} {_disrupted(condition, message or why)}"
    if meta.get("deletionTimestamp") and not why:
        return f"{name} was deleted, and the sandbox's data is lost with it"
    return f"{name} was ended by its cluster ({why or phase}){': ' + message if message else ''}"


def disruption(pod: Json) -> str:
    """Why the cluster ends a pod that may still run; empty if it does not."""
    condition = _disruption_target(pod)
    if condition is None:
        return ""
    return f"{pod['metadata']['name']} {_disrupted(condition, condition.get('message') or '')}"


def _disrupted(condition: Mapping[str, Any] | None, message: str) -> str:
    reason = (condition or {}).get("reason", "TerminationByKubelet")
    if _SHUTDOWN.search(message):
        return f"was ended because its node shuts down ({message})"
    what, remedy = _DISRUPTED.get(reason, (f"was ended by its cluster ({reason})", "check the cluster's events"))
    return f"{what}{': ' + message if message else ''}; {remedy}"


def _disruption_target(pod: Json) -> Mapping[str, Any] | None:
    """The condition of a pod that its cluster ends, or None."""
    found = (one for one in (pod.get("status") or {}).get("conditions") or [] if one["type"] == "DisruptionTarget")
    return next((one for one in found if one.get("status") == "True"), None)


def _has_reason(condition: Mapping[str, Any] | None, *reasons: str) -> bool:
    return bool(condition) and condition is not None and condition.get("reason") in reasons
