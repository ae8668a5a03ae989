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
"""The name of a pod's container."""
PREFIX: Final = "sandherd-"
"""The prefix of the names of pods and network policies."""
MANAGED: Final = {"app.kubernetes.io/managed-by": "sandherd", "app.kubernetes.io/name": "sandherd-sandbox"}
"""The labels of the sandboxes of all herds."""
UNIT: Final = "sandherd.dev/unit"
"""The annotation with the name of the box."""
LABELS: Final = "sandherd.dev/labels"
"""The annotation with the original labels, because a cluster does not accept every text as the value of a label."""
BEGUN: Final = "sandherd.dev/begun"
"""The annotation of a pod with the number of times that we have started its program."""
POD: Final = "sandherd.dev/pod"
"""The annotation of a Sandbox with the uid of the pod in which its program was first started.

Another pod does not have the data of that pod.
"""
QUARANTINED: Final = "sandherd.dev/aside"
"""The label of a pod in quarantine."""
GROUP: Final = "agents.x-k8s.io"
"""The API group of the resource Sandbox."""
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
    """The `ownerReference` of all objects that are created; None: they have none."""
    placement: Placement = field(default_factory=Placement)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    pending: float = 300
    """How long a pod may be pending, in seconds."""
    closed: bool = False
    """Whether all ingress to pods is denied."""
    ports: tuple[int, ...] = ()
    """The only ports that are open to ingress; empty: all ports."""


def pod_name(unit: str) -> str:
    """The pod name of a unit: the unit's name if it is valid in a cluster, else a shortened name with a digest."""
    name = PREFIX + unit
    if _NAME.fullmatch(name):
        return name
    return f"{PREFIX}{re.sub('[^a-z0-9]', '-', unit.lower())[:36].strip('-')}-{_digest(unit)}"


def label(value: str) -> str:
    """The value of a label if it is valid in a cluster, else a digest of the value."""
    return value if _LABEL.fullmatch(value) else f"x-{_digest(value)}"


def selector(labels: Mapping[str, str]) -> str:
    """The label selector for objects with these labels."""
    return ",".join(f"{key}={label(value)}" for key, value in (MANAGED | dict(labels)).items())


def pod(spec: BoxSpec, options: PodOptions) -> Json:
    """The pod of a box."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(spec, options), "spec": pod_spec(spec, options)}


def sandbox(spec: BoxSpec, options: PodOptions, version: str) -> Json:
    """The Sandbox of a box. The controller of Sandboxes creates its pod, with the same name."""
    metadata = _metadata(spec, options)
    template = {
        "metadata": {key: metadata[key] for key in ("labels", "annotations")},
        "spec": pod_spec(spec, options),
    }
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "Sandbox",
        "metadata": metadata,
        "spec": {"podTemplate": template},
    }


def pod_spec(spec: BoxSpec, options: PodOptions) -> Json:
    """The pod spec of a box, with the fewest privileges a worker needs."""
    uid, gid = options.user
    fields: Json = {
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
        "containers": [_container(spec, options)],
        "volumes": [
            _volume("sandherd", options),
            *([_volume("tmp", options)] if options.read_only else []),
            *(_claim(number, mount) for number, mount in enumerate(spec.mounts)),
        ],
    }
    if spec.mounts:
        # Otherwise the kubelet would change the owner of every file of a large volume at each start.
        fields["securityContext"]["fsGroupChangePolicy"] = "OnRootMismatch"
    if options.service_account:
        fields["serviceAccountName"] = options.service_account
    if options.pull_secrets:
        fields["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return fields | _placement_fields(options.placements.get(spec.profile or "", options.placement))


def _container(spec: BoxSpec, options: PodOptions) -> Json:
    resources = {
        "memory": f"{spec.limits.memory_mb}Mi",
        "cpu": options.cpu if spec.limits.cores is None else f"{round(spec.limits.cores * 1000)}m",
        "ephemeral-storage": f"{options.storage_mb}Mi",
    }
    mounts: list[Json] = [{"name": "sandherd", "mountPath": ROOT}]
    if options.read_only:
        mounts.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108  # the box's own
    fields: Json = {
        "name": CONTAINER,
        "image": spec.image or options.image,
        "imagePullPolicy": options.pull_policy,
        "command": entrypoint.gate(spec.program, spec.limits.open_files, spec.limits.cpu_seconds),
        "workingDir": ROOT,
        "env": [{"name": name, "value": value} for name, value in spec.environment.items()],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": options.read_only,
        },
        "volumeMounts": [*mounts, *(_claim_mount(number, mount) for number, mount in enumerate(spec.mounts))],
    }
    if spec.ports:
        fields["ports"] = [{"containerPort": port} for port in spec.ports]
    return fields


def _volume(name: str, options: PodOptions) -> Json:
    return {"name": name, "emptyDir": {"sizeLimit": f"{options.storage_mb}Mi"}}


def _claim(number: int, mount: Mount) -> Json:
    claim = {"claimName": mount.source, "readOnly": mount.read_only}
    return {"name": f"mount-{number}", "persistentVolumeClaim": claim}


def _claim_mount(number: int, mount: Mount) -> Json:
    return {"name": f"mount-{number}", "mountPath": mount.target, "readOnly": mount.read_only}


def _placement_fields(placement: Placement) -> Json:
    fields: Json = {}
    if placement.runtime_class:
        fields["runtimeClassName"] = placement.runtime_class
    if placement.node_selector:
        fields["nodeSelector"] = dict(placement.node_selector)
    if placement.tolerations:
        tolerations = [toleration.model_dump(exclude_none=True) for toleration in placement.tolerations]
        fields["tolerations"] = [_rename_field(one, "seconds", "tolerationSeconds") for one in tolerations]
    if placement.priority_class:
        fields["priorityClassName"] = placement.priority_class
    if placement.affinity:
        fields["affinity"] = dict(placement.affinity)
    if placement.spread:
        fields["topologySpreadConstraints"] = [_spread(key) for key in placement.spread]
    return fields


def _spread(key: str) -> Json:
    """A constraint that spreads all sandboxes of the namespace over the values of a node label, if capacity permits."""
    sandboxes = {"matchLabels": dict(MANAGED)}
    return {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": sandboxes}


def _rename_field(fields: Json, old: str, new: str) -> Json:
    return {new if name == old else name: value for name, value in fields.items()}


def recommended_labels(herd: str) -> dict[str, str]:
    """The labels that Kubernetes recommends. The herd is the instance."""
    return MANAGED | {
        "app.kubernetes.io/component": "sandbox",
        "app.kubernetes.io/part-of": "sandherd",
        "app.kubernetes.io/instance": label(herd),
        "app.kubernetes.io/version": label(_VERSION),
    }


def _metadata(spec: BoxSpec, options: PodOptions) -> Json:
    common = recommended_labels(spec.labels.get(HERD, "none"))
    fields: Json = {
        "name": pod_name(spec.name),
        "labels": common | {key: label(value) for key, value in spec.labels.items()},
        "annotations": {
            UNIT: spec.name,
            LABELS: json.dumps(dict(spec.labels)),
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        },
    }
    if options.owner:
        fields["ownerReferences"] = [dict(options.owner)]
    return fields


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
