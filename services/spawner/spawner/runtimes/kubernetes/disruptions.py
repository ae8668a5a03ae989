"""The reasons for which a cluster ends a pod, such as an eviction or a lost node, each with its remedy. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from spawner.runtimes.kubernetes.manifests import Json

ENDED: Final = frozenset({"Failed", "Succeeded"})
"""The phases of a pod that its cluster has ended. Such a pod is never restarted."""
_LOST_NODE: Final = "the node of {name} is lost or does not respond, and the sandbox's data is lost with it"
_DISRUPTION_TEXTS: Final = {
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
    status, metadata = pod.get("status") or {}, pod["metadata"]
    phase, reason, name = status.get("phase"), status.get("reason") or "", metadata["name"]
    condition = _disruption_target(pod)
    message = status.get("message") or (condition or {}).get("message") or ""
    is_node_lost = (
        reason == "NodeLost"
        or phase == "Unknown"
        or _has_reason(condition, "DeletionByTaintManager", "DeletionByPodGC")
    )
    if is_node_lost and (metadata.get("deletionTimestamp") or phase in {"Unknown", "Failed"}):
        return _LOST_NODE.format(name=name) + (f": {message}" if message else "")
    if phase not in ENDED:
        return None
    if condition or reason == "Evicted":
        return f"{name} {_disruption_text(condition, message or reason)}"
    if metadata.get("deletionTimestamp") and not reason:
        return f"{name} was deleted, and the sandbox's data is lost with it"
    return f"{name} was ended by its cluster ({reason or phase}){': ' + message if message else ''}"


def disruption(pod: Json) -> str:
    """Why the cluster ends a pod that may still run; empty if it does not end the pod."""
    condition = _disruption_target(pod)
    if condition is None:
        return ""
    return f"{pod['metadata']['name']} {_disruption_text(condition, condition.get('message') or '')}"


def _disruption_text(condition: Mapping[str, Any] | None, message: str) -> str:
    reason = (condition or {}).get("reason", "TerminationByKubelet")
    if _SHUTDOWN.search(message):
        return f"was ended because its node shuts down ({message})"
    what, remedy = _DISRUPTION_TEXTS.get(reason, (f"was ended by its cluster ({reason})", "check the cluster's events"))
    return f"{what}{': ' + message if message else ''}; {remedy}"


def _disruption_target(pod: Json) -> Mapping[str, Any] | None:
    """The condition of a pod that its cluster ends, or None."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    targets = (condition for condition in conditions if condition["type"] == "DisruptionTarget")
    return next((condition for condition in targets if condition.get("status") == "True"), None)


def _has_reason(condition: Mapping[str, Any] | None, *reasons: str) -> bool:
    return bool(condition) and condition is not None and condition.get("reason") in reasons
