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
"""Registry errors that a retry will not resolve."""
_WRONG: Final = {
    "InvalidImageName": "the image's name is invalid",
    "ErrImageNeverPull": "the node lacks the image and may not pull it: check SANDHERD_KUBERNETES_PULL_POLICY",
    "CreateContainerConfigError": "the cluster can't create the container: check what it reports as missing",
    "CreateContainerError": "the node can't create the container: check the image and the runtime class",
    "RunContainerError": "the image can't be run: it needs /bin/sh",
}
_NEVER_BEGAN: Final = "its first process exits: the image needs /bin/sh, and the pod enough memory to start it"
_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
_FETCH: Final = "; use an image that the nodes can pull, or set SANDHERD_KUBERNETES_PULL_SECRETS"


def of(sandbox: Json | None, pod: Json | None) -> Box | None:
    """Convert the objects of a box; None if it has none."""
    if pod is not None:
        return box(pod, sandbox)
    return podless(sandbox) if sandbox is not None else None


def has_sandbox(pod: Json) -> bool:
    """Whether a pod is owned by a Sandbox."""
    return any(one["kind"] == "Sandbox" for one in pod["metadata"].get("ownerReferences") or [])


def finalizers(item: Json | None) -> list[str]:
    """The finalizers that prevent the removal of a deleted object; empty if there are none or it was not deleted."""
    meta = (item or {}).get("metadata", {})
    return list(meta.get("finalizers") or []) if meta.get("deletionTimestamp") else []


def is_deleted(item: Json | None) -> bool:
    """Whether an object was deleted, although it may still exist."""
    return bool((item or {}).get("metadata", {}).get("deletionTimestamp"))


def box(pod: Json, owner: Json | None = None) -> Box:
    """Convert a pod, and the Sandbox that owns it if there is one, to a box."""
    meta = pod["metadata"]
    notes = meta.get("annotations") or {}
    first = ((owner or {}).get("metadata", {}).get("annotations") or {}).get(POD)
    runs, ends = int(notes.get(BEGUN, 1 if first else 0)), ended(pod)
    over = _replaced(pod, first) or disruptions.loss_reason(pod)
    state = BoxState.FAILED if over else _state(pod, runs, ends)
    end = None
    if over or state is BoxState.STOPPED:
        end = _end(pod, over)
    return Box(
        name=notes.get(UNIT, meta["name"]),
        id=meta["uid"],
        labels=json.loads(notes.get(LABELS, "{}")),
        state=state,
        created_at=moment(meta["creationTimestamp"]),
        runs=runs,
        end=end,
        problem=over or "",
        disruption=disruptions.disruption(pod),
        quarantined=QUARANTINED in (meta.get("labels") or {}),
    )


def podless(sandbox: Json) -> Box:
    """Convert a Sandbox without a pod to a box. The pod was not created yet, or it was deleted."""
    meta = sandbox["metadata"]
    notes = meta.get("annotations") or {}
    begun = POD in notes
    problem = f"the pod of {meta['name']} no longer exists, and the sandbox's data is lost with it" if begun else ""
    return Box(
        name=notes.get(UNIT, meta["name"]),
        id=meta["uid"],
        labels=json.loads(notes.get(LABELS, "{}")),
        state=BoxState.FAILED if begun else BoxState.CREATING,
        created_at=moment(meta["creationTimestamp"]),
        runs=1 if begun else 0,
        end=ProgramEnd(None, reason=problem) if begun else None,
        problem=problem,
    )


def refusal_of(sandbox: Json | None) -> str:
    """The API server's last refusal to a Sandbox's controller, as that reports it; empty if there is none."""
    for one in ((sandbox or {}).get("status") or {}).get("conditions") or []:
        if one["type"] == "Ready" and one.get("reason") == "ReconcilerError":
            return str(one.get("message") or "")
    return ""


def container(pod: Json) -> Json:
    """The status of our container; empty until the pod is scheduled on a node."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == CONTAINER), {})


def ended(pod: Json) -> int:
    """How often the gate has ended."""
    status = container(pod)
    return int(status.get("restartCount", 0)) + ("terminated" in (status.get("state") or {}))


def runs(pod: Json) -> bool:
    """Whether commands can be run in the pod now."""
    return "running" in (container(pod).get("state") or {})


def host(pod: Json) -> str | None:
    """A pod's address in its cluster, in the form used in URLs; None until it has one."""
    found: str = (pod.get("status") or {}).get("podIP") or ""
    return f"[{found}]" if ":" in found else found or None


def has_ended(pod: Json) -> bool:
    """Whether the cluster has ended the pod; such a pod is never restarted."""
    return (pod.get("status") or {}).get("phase") in disruptions.ENDED


def _state(pod: Json, runs: int, ends: int) -> BoxState:
    if pod["metadata"].get("deletionTimestamp") and not container(pod).get("state", {}).get("running"):
        return BoxState.REMOVING
    if runs == 0:
        return BoxState.CREATING
    return BoxState.RUNNING if ends < runs else BoxState.STOPPED


def _end(pod: Json, over: str | None) -> ProgramEnd:
    status = container(pod)
    states = (status.get("state") or {}, status.get("lastState") or {})
    last: Mapping[str, Any] = next((one["terminated"] for one in states if "terminated" in one), {})
    memory = last.get("reason") == "OOMKilled"
    reason = over or (last.get("message") or "")
    code = last.get("exitCode")
    # After an eviction the exit status means nothing: the program may have ended normally, or been killed.
    return ProgramEnd(None if over else code, out_of_memory=memory and not over, reason=reason)


def _replaced(pod: Json, first: str | None) -> str | None:
    meta = pod["metadata"]
    if first is None or first == meta["uid"]:
        return None
    return f"the pod of {meta['name']} was replaced, and the sandbox's data is lost with it"


@dataclass(frozen=True)
class PodWaitReason:
    """Why a pod does not run yet. `hopeless`: it will never run."""

    fault: ProviderFault
    why: str
    hopeless: bool = False


def waiting(pod: Json) -> PodWaitReason:
    """The reason why a pod does not run yet."""
    state = (container(pod).get("state") or {}).get("waiting") or {}
    reason, message = state.get("reason", ""), state.get("message", "")
    if has_ended(pod):
        why = (pod["status"].get("reason") or "") + ": " + (pod["status"].get("message") or "")
        return PodWaitReason(ProviderFault.QUOTA, f"its node rejected it ({why})", hopeless=True)
    if reason in _IMAGE:
        text = f"the image {_image(pod)} can't be pulled ({message or reason}){_FETCH}"
        return PodWaitReason(ProviderFault.REFUSED, text, hopeless=bool(_NO_IMAGE_ERROR.search(message)))
    if reason == "CrashLoopBackOff":
        last = (container(pod).get("lastState") or {}).get("terminated") or {}
        message = last.get("message") or f"{last.get('reason', 'no reason')}, exit status {last.get('exitCode')}"
        return PodWaitReason(ProviderFault.REFUSED, f"{_NEVER_BEGAN} (image {_image(pod)}: {message})", hopeless=True)
    if reason in _WRONG:
        text = f"{_WRONG[reason]} (image {_image(pod)}: {message or reason})"
        return PodWaitReason(ProviderFault.REFUSED, text, hopeless=True)
    conditions = (pod.get("status") or {}).get("conditions") or []
    placed = next((one for one in conditions if one["type"] == "PodScheduled"), None)
    if placed is not None and placed.get("status") == "False":
        why = placed.get("message") or placed.get("reason")
        text = f"no node has capacity for it ({why}); add capacity, or lower limits"
        return PodWaitReason(ProviderFault.QUOTA, text)
    return PodWaitReason(ProviderFault.TIMED_OUT, f"it is being created ({reason or 'no reason given'})")


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def moment(text: str) -> datetime:
    """Parse a timestamp of a cluster."""
    return datetime.fromisoformat(text)
