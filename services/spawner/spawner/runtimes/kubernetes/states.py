"""What a cluster says of a pod, as a box; and why one does not come to run. All pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from spawner.runtimes.boxes.provider import Box, BoxState, ProgramEnd, ProviderFault
from spawner.runtimes.kubernetes.manifests import ASIDE, BEGUN, CONTAINER, LABELS, POD, UNIT, Json

_NOT_THERE: Final = re.compile(
    r"not found|does not exist|manifest unknown|denied|unauthorized|authentication required|invalid"
    r"|not present",
    re.IGNORECASE,
)
"""What a registry says of an image that no other try would bring."""
_WRONG: Final = {
    "InvalidImageName": "the image's name is none",
    "ErrImageNeverPull": "the node has no such image, and may not fetch it: SANDHERD_KUBERNETES_PULL_POLICY",
    "CreateContainerConfigError": "the cluster can't make such a container: look at what it says it lacks",
    "CreateContainerError": "the node can't make the container: look at the image and at the runtime class",
    "RunContainerError": "the image can't be run: it needs /bin/sh",
}
_NEVER_BEGAN: Final = "its first process does not stay: the image needs /bin/sh, and the pod room to start it"
_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
_FETCH: Final = "; name an image that the nodes can fetch, or set SANDHERD_KUBERNETES_PULL_SECRETS"
_LOST_NODE: Final = "the node of {name} is lost or no longer answers, and what the sandbox held with it"
_EVICTED: Final = "; give it more (SANDBOX_MEMORY_GB, SANDHERD_KUBERNETES_STORAGE_GB), or the cluster more nodes"


def box(pod: Json, owner: Json | None = None) -> Box:
    """A pod, and the Sandbox that it is of where there is one."""
    meta = pod["metadata"]
    notes = meta.get("annotations") or {}
    first = ((owner or {}).get("metadata", {}).get("annotations") or {}).get(POD)
    runs, ends = int(notes.get(BEGUN, 1 if first else 0)), ended(pod)
    over = _replaced(pod, first) or _over(pod)
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
        aside=ASIDE in (meta.get("labels") or {}),
    )


def podless(sandbox: Json) -> Box:
    """A Sandbox that has no pod: not yet, or no longer."""
    meta = sandbox["metadata"]
    notes = meta.get("annotations") or {}
    begun = POD in notes
    problem = f"the pod of {meta['name']} is gone, and what the sandbox held with it" if begun else ""
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


def container(pod: Json) -> Json:
    """The status of our container; empty as long as no node has taken the pod."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == CONTAINER), {})


def ended(pod: Json) -> int:
    """How often the gate has ended."""
    status = container(pod)
    return int(status.get("restartCount", 0)) + ("terminated" in (status.get("state") or {}))


def runs(pod: Json) -> bool:
    """Whether commands can be run in it at this moment."""
    return "running" in (container(pod).get("state") or {})


def host(pod: Json) -> str | None:
    """Where a pod is reached in its cluster, as it stands in a URL; None as long as it has no address."""
    found: str = (pod.get("status") or {}).get("podIP") or ""
    return f"[{found}]" if ":" in found else found or None


def gone_for_good(pod: Json) -> bool:
    """Whether its cluster has ended it: such a pod is never started again."""
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


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
    told = over or (last.get("message") or "")
    code = last.get("exitCode")
    # After an eviction the program's own status says nothing: it may have ended in order, or been killed.
    return ProgramEnd(None if over else code, out_of_memory=memory and not over, reason=told)


def _replaced(pod: Json, first: str | None) -> str | None:
    meta = pod["metadata"]
    if first is None or first == meta["uid"]:
        return None
    return f"the pod of {meta['name']} was replaced, and what the sandbox held is lost with it"


def _over(pod: Json) -> str | None:
    """Why the pod is lost for good, if it is."""
    status, meta = pod.get("status") or {}, pod["metadata"]
    phase, why, name = status.get("phase"), status.get("reason") or "", meta["name"]
    disruption = next((one for one in status.get("conditions") or [] if one["type"] == "DisruptionTarget"), None)
    told = status.get("message") or (disruption or {}).get("message") or ""
    lost = why == "NodeLost" or phase == "Unknown" or _is(disruption, "DeletionByTaintManager", "DeletionByPodGC")
    if lost and (meta.get("deletionTimestamp") or phase in {"Unknown", "Failed"}):
        return _LOST_NODE.format(name=name) + (f": {told}" if told else "")
    if not gone_for_good(pod):
        return None
    if why == "Evicted" or _is(disruption, "TerminationByKubelet", "EvictionByEvictionAPI", "PreemptionByScheduler"):
        return f"{name} was evicted: {told or why}{_EVICTED}"
    return f"{name} was ended by its cluster ({why or phase}){': ' + told if told else ''}"


def _is(condition: Mapping[str, Any] | None, *reasons: str) -> bool:
    return bool(condition) and condition is not None and condition.get("reason") in reasons


@dataclass(frozen=True)
class Waiting:
    """Why a pod does not run yet. Where waiting is of no use, `hopeless` is true."""

    fault: ProviderFault
    why: str
    hopeless: bool = False


def waiting(pod: Json) -> Waiting:
    """What a pod waits for."""
    state = (container(pod).get("state") or {}).get("waiting") or {}
    reason, said = state.get("reason", ""), state.get("message", "")
    if gone_for_good(pod):
        why = (pod["status"].get("reason") or "") + ": " + (pod["status"].get("message") or "")
        return Waiting(ProviderFault.QUOTA, f"its node would not take it ({why})", hopeless=True)
    if reason in _IMAGE:
        text = f"the image {_image(pod)} can't be fetched ({said or reason}){_FETCH}"
        return Waiting(ProviderFault.REFUSED, text, hopeless=bool(_NOT_THERE.search(said)))
    if reason == "CrashLoopBackOff":
        last = (container(pod).get("lastState") or {}).get("terminated") or {}
        told = last.get("message") or f"{last.get('reason', 'unsaid')}, exit status {last.get('exitCode')}"
        return Waiting(ProviderFault.REFUSED, f"{_NEVER_BEGAN} (image {_image(pod)}: {told})", hopeless=True)
    if reason in _WRONG:
        text = f"{_WRONG[reason]} (image {_image(pod)}: {said or reason})"
        return Waiting(ProviderFault.REFUSED, text, hopeless=True)
    conditions = (pod.get("status") or {}).get("conditions") or []
    placed = next((one for one in conditions if one["type"] == "PodScheduled"), None)
    if placed is not None and placed.get("status") == "False":
        text = f"no node takes it ({placed.get('message') or placed.get('reason')}); make room, or ask for less"
        return Waiting(ProviderFault.QUOTA, text)
    return Waiting(ProviderFault.TIMED_OUT, f"it is being made ({reason or 'nothing is said of it'})")


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def moment(text: str) -> datetime:
    """A time as a cluster writes it."""
    return datetime.fromisoformat(text)
