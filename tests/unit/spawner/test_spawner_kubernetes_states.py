"""What a cluster says of a pod, in every way that a pod can fail: distinguished, each with its remedy."""

from typing import Any

import pytest

from spawner.runtimes.boxes.provider import BoxState, ProviderFault
from spawner.runtimes.kubernetes import states

NOW = "2026-11-21T12:00:00Z"


def pod(status: dict[str, Any], begun: int | None = 1, **meta: Any) -> dict[str, Any]:
    notes = {"sandherd.dev/unit": "sbx-1", "sandherd.dev/labels": "{}"}
    if begun:
        notes["sandherd.dev/begun"] = str(begun)
    metadata = {"name": "sandherd-sbx-1", "uid": "1", "creationTimestamp": NOW, "annotations": notes, **meta}
    spec = {"containers": [{"name": "sandbox", "image": "image:1"}]}
    return {"metadata": metadata, "spec": spec, "status": status}


def contained(
    state: dict[str, Any], restarts: int = 0, last: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    one = {"name": "sandbox", "state": state, "restartCount": restarts, "lastState": last or {}}
    return {"phase": "Running", "containerStatuses": [one], **more}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


RUNNING: dict[str, Any] = {"running": {"startedAt": NOW}}
LOOPING: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("status", "begun", "state", "end"),
    [
        ({"phase": "Pending"}, None, BoxState.CREATING, None),
        (contained(RUNNING), None, BoxState.CREATING, None),
        (contained(RUNNING), 1, BoxState.RUNNING, None),
        (contained(RUNNING, 1, ended(7)), 1, BoxState.STOPPED, (7, False)),
        (contained(LOOPING, 1, ended(137, "OOMKilled")), 1, BoxState.STOPPED, (137, True)),
        (contained(ended(0, "Completed")), 1, BoxState.STOPPED, (0, False)),
        (contained(RUNNING, 1, ended(7)), 2, BoxState.RUNNING, None),
        (contained(ended(137), 1, ended(7)), 2, BoxState.STOPPED, (137, False)),
        (contained(RUNNING, 2, ended(3)), 2, BoxState.STOPPED, (3, False)),
    ],
)
def test_a_pod_is_what_its_gate_has_come_to(
    status: dict[str, Any], begun: int | None, state: BoxState, end: tuple[int, bool] | None
) -> None:
    """The program runs if it was started more often than the gate has ended; its end is the gate's last end."""
    box = states.box(pod(status, begun))
    assert box.state is state
    assert (box.end and (box.end.code, box.end.out_of_memory)) == end
    assert box.alive is (end is None)


SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


def disrupted(reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("status", "meta", "expected_text"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}, {}, ["evicted", "memory"]),
        ({"phase": "Failed", **disrupted("TerminationByKubelet", "low on disk")}, {}, ["evicted", "low on disk"]),
        ({"phase": "Failed", **disrupted("PreemptionByScheduler")}, {}, ["preempted", "priority_class"]),
        (
            {"phase": "Failed", **disrupted("EvictionByEvictionAPI", "Eviction API: evicting")},
            {"deletionTimestamp": NOW},
            ["evicted on request", "Eviction API: evicting", "drain"],
        ),
        (
            {"phase": "Failed", "reason": "Terminated", **disrupted("TerminationByKubelet", SHUTDOWN)},
            {},
            ["its node shuts down"],
        ),
        ({"phase": "Failed"}, {"deletionTimestamp": NOW}, ["was deleted"]),
        ({"phase": "Failed", "reason": "NodeLost"}, {}, ["node", "lost"]),
        ({"phase": "Unknown"}, {}, ["node", "lost"]),
        (contained(RUNNING, **disrupted("DeletionByTaintManager")), {"deletionTimestamp": NOW}, ["node", "lost"]),
        # An agent that ends in order when its pod is evicted leaves no word of the eviction (kubernetes #141483).
        (contained(ended(0, "Completed")) | {"phase": "Succeeded"}, {}, ["ended by its cluster"]),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "was active too long"}, {}, ["DeadlineExceeded"]),
    ],
)
def test_a_pod_that_is_over_for_good_says_why(
    status: dict[str, Any], meta: dict[str, Any], expected_text: list[str]
) -> None:
    """The exit status of its program is not taken for its end."""
    box = states.box(pod(status, **meta))
    assert (box.state, box.alive) == (BoxState.FAILED, False)
    assert box.end is not None
    assert (box.end.code, box.end.out_of_memory) == (None, False)
    assert all(word in box.end.reason for word in expected_text), box.end.reason


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("PreemptionByScheduler", "priority_class"),
        ("EvictionByEvictionAPI", "drain a node when"),
        ("DeletionByTaintManager", "toleration"),
    ],
)
def test_only_a_node_without_room_is_a_reason_for_more_of_it(reason: str, advice: str) -> None:
    """The remedy fits the reason. A pod that is disrupted has one while it still runs."""
    found = states.box(pod(contained(RUNNING, **disrupted(reason, "why"))))
    assert found.alive
    assert advice in found.disruption
    assert "SANDBOX_MEMORY_GB" not in found.disruption
    ended = states.box(pod({"phase": "Failed", **disrupted("TerminationByKubelet", "low on memory")}))
    assert "SANDBOX_MEMORY_GB" in ended.problem


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return contained({"waiting": {"reason": reason, "message": message}}) | {"phase": "Pending"}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient cpu."}
    ],
}


@pytest.mark.parametrize(
    ("status", "fault", "hopeless", "expected_text"),
    [
        (waiting("ErrImagePull", "image:1: not found"), ProviderFault.REFUSED, True, ["image:1", "PULL_SECRETS"]),
        (waiting("ImagePullBackOff", "Back-off: pull access denied"), ProviderFault.REFUSED, True, ["image:1"]),
        (waiting("ImagePullBackOff", "Back-off pulling image"), ProviderFault.REFUSED, False, ["image:1"]),
        (waiting("ErrImagePull", "i/o timeout"), ProviderFault.REFUSED, False, ["i/o timeout"]),
        (waiting("InvalidImageName", "x"), ProviderFault.REFUSED, True, ["name"]),
        (waiting("ErrImageNeverPull"), ProviderFault.REFUSED, True, ["PULL_POLICY"]),
        (waiting("CreateContainerConfigError", 'secret "a" not found'), ProviderFault.REFUSED, True, ['secret "a"']),
        (waiting("RunContainerError", "exec: /bin/sh"), ProviderFault.REFUSED, True, ["/bin/sh"]),
        (
            contained({"waiting": {"reason": "CrashLoopBackOff"}}, 2, ended(128, "StartError")),
            ProviderFault.REFUSED,
            True,
            ["/bin/sh", "image:1", "StartError", "128"],
        ),
        (waiting("ContainerCreating"), ProviderFault.TIMED_OUT, False, ["ContainerCreating"]),
        (UNSCHEDULABLE, ProviderFault.QUOTA, False, ["Insufficient cpu", "add capacity"]),
        (
            {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough"},
            ProviderFault.QUOTA,
            True,
            [],
        ),
    ],
)
def test_a_pod_that_does_not_come_to_run_says_why(
    status: dict[str, Any], fault: ProviderFault, hopeless: bool, expected_text: list[str]
) -> None:
    """The result also states whether it can still come to run."""
    found = states.wait_reason(pod(status, None))
    assert (found.fault, found.hopeless) == (fault, hopeless)
    assert all(word in found.reason for word in expected_text), found.reason
