"""Converts pods to boxes, and finds out why a pod does not start. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from spawner.runtimes.boxes.provider import Box, BoxState, ProgramEnd, ProviderFault
from spawner.runtimes.kubernetes import disruptions
from spawner.runtimes.kubernetes.manifests import BEGUN, CONTAINER, LABELS, POD, QUARANTINED, UNIT, Json

_NO_IMAGE_ERROR: Final = re.compile(
    r"not found|does not exist|manifest unknown|denied|unauthorized|authentication required|invalid"
    r"|not present",
    re.IGNORECASE,
)
"""Errors of a registry that a retry will not resolve."""
_PERMANENT_REASONS: Final = {
    "InvalidImageName": "the image's name is invalid",
    "ErrImageNeverPull": "the node lacks the image and may not pull it: check SANDHERD_KUBERNETES_PULL_POLICY",
    "CreateContainerConfigError": "the cluster can't create the container: check what it reports as missing",
    "CreateContainerError": "the node can't create the container: check the image and the runtime class",
    "RunContainerError": "the image can't be run: it needs /bin/sh",
}
"""Reasons for which a container waits and will never start, each with its cause."""
_GATE_EXITS: Final = "its first process exits: the image needs /bin/sh, and the pod enough memory to start it"
_IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
_IMAGE_REMEDY: Final = "; use an image that the nodes can pull, or set SANDHERD_KUBERNETES_PULL_SECRETS"


def box_of(sandbox: Json | None, pod: Json | None) -> Box | None:
    """The box of these objects; None if both are missing."""
    if pod is not None:
        return box(pod, sandbox)
    return box_without_pod(sandbox) if sandbox is not None else None


def has_sandbox(pod: Json) -> bool:
    """Whether a pod is owned by a Sandbox."""
    return any(owner["kind"] == "Sandbox" for owner in pod["metadata"].get("ownerReferences") or [])


def finalizers(item: Json | None) -> list[str]:
    """The finalizers that prevent the removal of a deleted object; empty if there are none or it was not deleted."""
    metadata = (item or {}).get("metadata", {})
    return list(metadata.get("finalizers") or []) if metadata.get("deletionTimestamp") else []


def is_deleted(item: Json | None) -> bool:
    """Whether an object was deleted, although it may still exist."""
    return bool((item or {}).get("metadata", {}).get("deletionTimestamp"))


def box(pod: Json, owner: Json | None = None) -> Box:
    """Convert a pod, and the Sandbox that owns it if there is one, to a box."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    first_uid = ((owner or {}).get("metadata", {}).get("annotations") or {}).get(POD)
    runs, ends = int(annotations.get(BEGUN, 1 if first_uid else 0)), end_count(pod)
    loss = _replacement(pod, first_uid) or disruptions.loss_reason(pod)
    state = BoxState.FAILED if loss else _state(pod, runs, ends)
    end = None
    if loss or state is BoxState.STOPPED:
        end = _end(pod, loss)
    return Box(
        name=annotations.get(UNIT, metadata["name"]),
        id=metadata["uid"],
        labels=json.loads(annotations.get(LABELS, "{}")),
        state=state,
        created_at=parse_time(metadata["creationTimestamp"]),
        runs=runs,
        end=end,
        problem=loss or "",
        disruption=disruptions.disruption(pod),
        quarantined=QUARANTINED in (metadata.get("labels") or {}),
    )


def box_without_pod(sandbox: Json) -> Box:
    """Convert a Sandbox without a pod to a box. The pod was not created yet, or it was deleted."""
    metadata = sandbox["metadata"]
    annotations = metadata.get("annotations") or {}
    begun = POD in annotations
    problem = f"the pod of {metadata['name']} no longer exists, and the sandbox's data is lost with it" if begun else ""
    return Box(
        name=annotations.get(UNIT, metadata["name"]),
        id=metadata["uid"],
        labels=json.loads(annotations.get(LABELS, "{}")),
        state=BoxState.FAILED if begun else BoxState.CREATING,
        created_at=parse_time(metadata["creationTimestamp"]),
        runs=1 if begun else 0,
        end=ProgramEnd(None, reason=problem) if begun else None,
        problem=problem,
    )


def refusal_of(sandbox: Json | None) -> str:
    """The last refusal of the API server that a Sandbox's controller reports; empty if there is none."""
    for condition in ((sandbox or {}).get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready" and condition.get("reason") == "ReconcilerError":
            return str(condition.get("message") or "")
    return ""


def container(pod: Json) -> Json:
    """The status of our container; empty until the pod is scheduled on a node."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == CONTAINER), {})


def end_count(pod: Json) -> int:
    """How often the gate has ended."""
    status = container(pod)
    return int(status.get("restartCount", 0)) + ("terminated" in (status.get("state") or {}))


def accepts_commands(pod: Json) -> bool:
    """Whether commands can be run in the pod now."""
    return "running" in (container(pod).get("state") or {})


def url_host(pod: Json) -> str | None:
    """A pod's address in its cluster, in the form used in URLs; None until it has one."""
    address: str = (pod.get("status") or {}).get("podIP") or ""
    return f"[{address}]" if ":" in address else address or None


def has_ended(pod: Json) -> bool:
    """Whether the cluster has ended the pod. Such a pod is never restarted."""
    return (pod.get("status") or {}).get("phase") in disruptions.ENDED


def _state(pod: Json, runs: int, ends: int) -> BoxState:
    if pod["metadata"].get("deletionTimestamp") and not container(pod).get("state", {}).get("running"):
        return BoxState.REMOVING
    if runs == 0:
        return BoxState.CREATING
    return BoxState.RUNNING if ends < runs else BoxState.STOPPED


def _end(pod: Json, loss: str | None) -> ProgramEnd:
    """How the program of a pod ended. `loss`: why the pod is lost; None if it is not."""
    status = container(pod)
    states = (status.get("state") or {}, status.get("lastState") or {})
    last: Mapping[str, Any] = next((state["terminated"] for state in states if "terminated" in state), {})
    out_of_memory = last.get("reason") == "OOMKilled"
    reason = loss or (last.get("message") or "")
    code = last.get("exitCode")
    # After an eviction the exit status means nothing: the program may have ended normally, or been killed.
    return ProgramEnd(None if loss else code, out_of_memory=out_of_memory and not loss, reason=reason)


def _replacement(pod: Json, first_uid: str | None) -> str | None:
    """Why a box's data is lost, if the program first ran in a pod with another uid; else None."""
    metadata = pod["metadata"]
    if first_uid is None or first_uid == metadata["uid"]:
        return None
    return f"the pod of {metadata['name']} was replaced, and the sandbox's data is lost with it"


@dataclass(frozen=True)
class PodWaitReason:
    """Why a pod does not run yet. `hopeless`: it will never run."""

    fault: ProviderFault
    reason: str
    hopeless: bool = False


def wait_reason(pod: Json) -> PodWaitReason:
    """The reason why a pod does not run yet."""
    state = (container(pod).get("state") or {}).get("waiting") or {}
    reason, message = state.get("reason", ""), state.get("message", "")
    if has_ended(pod):
        detail = (pod["status"].get("reason") or "") + ": " + (pod["status"].get("message") or "")
        return PodWaitReason(ProviderFault.QUOTA, f"its node rejected it ({detail})", hopeless=True)
    if reason in _IMAGE_REASONS:
        text = f"the image {_image(pod)} can't be pulled ({message or reason}){_IMAGE_REMEDY}"
        return PodWaitReason(ProviderFault.REFUSED, text, hopeless=bool(_NO_IMAGE_ERROR.search(message)))
    if reason == "CrashLoopBackOff":
        last = (container(pod).get("lastState") or {}).get("terminated") or {}
        message = last.get("message") or f"{last.get('reason', 'no reason')}, exit status {last.get('exitCode')}"
        return PodWaitReason(ProviderFault.REFUSED, f"{_GATE_EXITS} (image {_image(pod)}: {message})", hopeless=True)
    if reason in _PERMANENT_REASONS:
        text = f"{_PERMANENT_REASONS[reason]} (image {_image(pod)}: {message or reason})"
        return PodWaitReason(ProviderFault.REFUSED, text, hopeless=True)
    conditions = (pod.get("status") or {}).get("conditions") or []
    scheduled = next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)
    if scheduled is not None and scheduled.get("status") == "False":
        detail = scheduled.get("message") or scheduled.get("reason")
        text = f"no node has capacity for it ({detail}); add capacity, or lower limits"
        return PodWaitReason(ProviderFault.QUOTA, text)
    return PodWaitReason(ProviderFault.TIMED_OUT, f"it is being created ({reason or 'no reason given'})")


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def parse_time(text: str) -> datetime:
    """Parse a timestamp of a cluster."""
    return datetime.fromisoformat(text)
