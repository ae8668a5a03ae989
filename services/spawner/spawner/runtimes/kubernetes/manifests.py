"""Manifests of boxes for a cluster. Pure."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from sandherd.contracts.requests import Mount
from sandherd.settings.kubernetes import Placement
from spawner.runtimes.boxes.box_files import HERD, ROOT
from spawner.runtimes.boxes.provider import BoxSpec
from spawner.runtimes.kubernetes import entrypoint

Json = dict[str, Any]
CONTAINER: Final = "sandbox"
PREFIX: Final = "sandherd-"
MANAGED: Final = {"app.kubernetes.io/managed-by": "sandherd", "app.kubernetes.io/name": "sandherd-sandbox"}
UNIT: Final = "sandherd.dev/unit"
LABELS: Final = "sandherd.dev/labels"
"""The annotation with the original labels: a cluster does not accept every text as a label value."""
BEGUN: Final = "sandherd.dev/begun"
"""The annotation of a pod with the number of times that we have started its program."""
POD: Final = "sandherd.dev/pod"
"""The annotation of a Sandbox with the uid of the pod in which its program was first started.

Another pod does not have the data of that pod.
"""
QUARANTINED: Final = "sandherd.dev/aside"
GROUP: Final = "agents.x-k8s.io"
_VERSION: Final = metadata.version("sandherd")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """Options for the pods of this cluster."""

    image: str
    user: tuple[int, int] = (1000, 1000)
    read_only: bool = True
    cpu: str = "1"
    storage_mb: int = 8192
    pull_policy: str = "IfNotPresent"
    pull_secrets: Sequence[str] = ()
    service_account: str | None = None
    owner: Mapping[str, Any] | None = None
    """An `ownerReference`."""
    placement: Placement = field(default_factory=Placement)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    pending: float = 300
    """How long a pod may be pending, in seconds."""
    closed: bool = False
    """Whether all ingress to pods is denied."""
    ports: tuple[int, ...] = ()
    """The only ports that are open to ingress; empty: all ports."""


def named(unit: str) -> str:
    """The pod name of a unit: the unit's name if it is valid in a cluster, else a shortened name with a digest."""
    whole = PREFIX + unit
    if _NAME.fullmatch(whole):
        return whole
    return f"{PREFIX}{re.sub('[^a-z0-9]', '-', unit.lower())[:36].strip('-')}-{_digest(unit)}"


def label(value: str) -> str:
    """A label's value if it is valid in a cluster, else a digest of it."""
    return value if _LABEL.fullmatch(value) else f"x-{_digest(value)}"


def selector(labels: Mapping[str, str]) -> str:
    """The label selector for objects with these labels."""
    return ",".join(f"{key}={label(value)}" for key, value in (MANAGED | dict(labels)).items())


def pod(spec: BoxSpec, kind: PodOptions) -> Json:
    """The pod of a box."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(spec, kind), "spec": pod_spec(spec, kind)}


def sandbox(spec: BoxSpec, kind: PodOptions, version: str) -> Json:
    """The Sandbox of a box: its controller creates the pod, with the same name."""
    metadata = _metadata(spec, kind)
    template = {
        "metadata": {key: metadata[key] for key in ("labels", "annotations")},
        "spec": pod_spec(spec, kind),
    }
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Sandbox",
        "metadata": metadata,
        "spec": {"podTemplate": template},
    }


def pod_spec(spec: BoxSpec, kind: PodOptions) -> Json:
    """The pod spec of a box, with the fewest privileges a worker needs."""
    uid, gid = kind.user
    found: Json = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": max(1, round(spec.stop_grace)),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": gid,
            "fsGroup": gid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, kind)],
        "volumes": [
            _volume("sandherd", kind),
            *([_volume("tmp", kind)] if kind.read_only else []),
            *(_claim(number, mount) for number, mount in enumerate(spec.mounts)),
        ],
    }
    if spec.mounts:
        # Otherwise the kubelet would change the owner of every file of a large volume at each start.
        found["securityContext"]["fsGroupChangePolicy"] = "OnRootMismatch"
    if kind.service_account:
        found["serviceAccountName"] = kind.service_account
    if kind.pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in kind.pull_secrets]
    return found | _placed(kind.placements.get(spec.profile or "", kind.placement))


def _container(spec: BoxSpec, kind: PodOptions) -> Json:
    resources = {
        "memory": f"{spec.limits.memory_mb}Mi",
        "cpu": kind.cpu if spec.limits.cores is None else f"{round(spec.limits.cores * 1000)}m",
        "ephemeral-storage": f"{kind.storage_mb}Mi",
    }
    mounts: list[Json] = [{"name": "sandherd", "mountPath": ROOT}]
    if kind.read_only:
        mounts.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108  # the box's own
    found: Json = {
        "name": CONTAINER,
        "image": spec.image or kind.image,
        "imagePullPolicy": kind.pull_policy,
        "command": entrypoint.gate(spec.program, spec.limits.open_files, spec.limits.cpu_seconds),
        "workingDir": ROOT,
        "env": [{"name": name, "value": value} for name, value in spec.environment.items()],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": kind.read_only,
        },
        "volumeMounts": [*mounts, *(_claim_mount(number, mount) for number, mount in enumerate(spec.mounts))],
    }
    if spec.ports:
        found["ports"] = [{"containerPort": port} for port in spec.ports]
    return found


def _volume(name: str, kind: PodOptions) -> Json:
    return {"name": name, "emptyDir": {"sizeLimit": f"{kind.storage_mb}Mi"}}


def _claim(number: int, mount: Mount) -> Json:
    claim = {"claimName": mount.source, "readOnly": mount.read_only}
    return {"name": f"mount-{number}", "persistentVolumeClaim": claim}


def _claim_mount(number: int, mount: Mount) -> Json:
    return {"name": f"mount-{number}", "mountPath": mount.target, "readOnly": mount.read_only}


def _placed(placement: Placement) -> Json:
    found: Json = {}
    if placement.runtime_class:
        found["runtimeClassName"] = placement.runtime_class
    if placement.node_selector:
        found["nodeSelector"] = dict(placement.node_selector)
    if placement.tolerations:
        tolerations = [one.model_dump(exclude_none=True) for one in placement.tolerations]
        found["tolerations"] = [_renamed(one, "seconds", "tolerationSeconds") for one in tolerations]
    if placement.priority_class:
        found["priorityClassName"] = placement.priority_class
    if placement.affinity:
        found["affinity"] = dict(placement.affinity)
    if placement.spread:
        found["topologySpreadConstraints"] = [_spread(key) for key in placement.spread]
    return found


def _spread(key: str) -> Json:
    """A constraint that spreads all sandboxes of the namespace as far as their nodes have capacity."""
    sandboxes = {"matchLabels": dict(MANAGED)}
    return {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": sandboxes}


def _renamed(fields: Json, old: str, new: str) -> Json:
    return {new if name == old else name: value for name, value in fields.items()}


def recommended(herd: str) -> dict[str, str]:
    """The recommended Kubernetes labels; the herd is the instance."""
    return MANAGED | {
        "app.kubernetes.io/component": "sandbox",
        "app.kubernetes.io/part-of": "sandherd",
        "app.kubernetes.io/instance": label(herd),
        "app.kubernetes.io/version": label(_VERSION),
    }


def _metadata(spec: BoxSpec, kind: PodOptions) -> Json:
    common = recommended(spec.labels.get(HERD, "none"))
    found: Json = {
        "name": named(spec.name),
        "labels": common | {key: label(value) for key, value in spec.labels.items()},
        "annotations": {
            UNIT: spec.name,
            LABELS: json.dumps(dict(spec.labels)),
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        },
    }
    if kind.owner:
        found["ownerReferences"] = [dict(kind.owner)]
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
