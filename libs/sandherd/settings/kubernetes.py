"""The settings of the Kubernetes runtime."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from sandherd.contracts.names import SafeName
from sandherd.settings.fields import DISK, NETWORK, Alias, Env, Names, Positive, schema_of, within

ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""The name of a Kubernetes object."""
_LABEL_KEY: Final = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE: Final = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
Namespace = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
LabelKey = Annotated[str, StringConstraints(pattern=f"^{_LABEL_KEY}$")]
LabelValue = Annotated[str, StringConstraints(pattern=f"^{_LABEL_VALUE}$")]
Owner = Annotated[str, StringConstraints(pattern=r"^(Deployment|StatefulSet)/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Users = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}:[0-9]{1,9}$")]
"""A uid and a gid. The uid can't be 0, because the pods have `runAsNonRoot`."""
Cores = Annotated[str, StringConstraints(pattern=r"^([0-9]+(\.[0-9]{1,3})?|[0-9]+m)$")]


NO_INGRESS: Final = "nobody"
_PODS: Final = rf"[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?(/{_LABEL_KEY}={_LABEL_VALUE})?"
_PORT: Final = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"


def _peer(text: str) -> str:
    if re.fullmatch(_PODS, text):
        return text
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a network, a namespace or namespace/label=value") from None


def _destination(text: str) -> str:
    peer, at, port = text.partition("@")
    if at and not re.fullmatch(_PORT, port):
        raise ValueError(f"{port!r} is not a port")
    return _peer(peer) + at + port


Peer = Annotated[str, AfterValidator(_peer), schema_of(f"({_PODS}|{NETWORK})")]
"""A network, such as 10.0.0.0/8, or the pods of a namespace, such as team or team/app=web."""
Destination = Annotated[str, AfterValidator(_destination), schema_of(f"({_PODS}|{NETWORK})(@{_PORT})?")]
"""A `Peer`, with all ports or with one port, such as 10.0.0.0/8@443 or models/app=gateway@8080."""
Port = Annotated[int, Field(ge=1, le=65_535)]
OpenPort = Annotated[int, Field(ge=1024, le=65_535)]


class Toleration(BaseModel):
    """A toleration of a pod, as in Kubernetes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: LabelKey | None = None
    """None, with `operator: Exists`: any taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    seconds: Annotated[int, Field(ge=0)] | None = None
    """`tolerationSeconds`, for NoExecute; None: forever."""


class Placement(BaseModel):
    """The nodes, the runtime class and the priority of the pods of one profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime_class: ObjectName | None = None
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: ObjectName | None = None
    affinity: dict[Literal["nodeAffinity", "podAffinity", "podAntiAffinity"], dict[str, Any]] = Field(
        default_factory=dict
    )
    """The affinity of a pod, as in Kubernetes."""
    spread: tuple[LabelKey, ...] = ()
    """Labels of nodes, such as topology.kubernetes.io/zone: sandboxes are spread over their values if possible."""


_DISK_GB: Final = (0.125, 4096)
_DISK: Final = Env("SANDHERD_KUBERNETES_STORAGE_GB", aliases=(Alias(DISK, within(*_DISK_GB)),))


class KubernetesSettings(BaseModel, defer_build=True):
    """The cluster of sandboxes, and how pods are created there."""

    kubernetes_config: Annotated[Path | None, Env("KUBECONFIG")] = None
    """The kubeconfig file; if unset, the service account of the spawner's own pod, or else ~/.kube/config."""
    kubernetes_namespace: Annotated[SafeName, Env("SANDHERD_KUBERNETES_NAMESPACE")] = "sandherd"
    """The namespace of sandboxes; it has to exist."""
    kubernetes_namespaces: Annotated[dict[SafeName, Namespace], Env("SANDHERD_KUBERNETES_NAMESPACES")] = {}
    """The namespaces of single projects, such as {team: agents-of-team}, which have to exist. The sandboxes of other
    projects are in kubernetes_namespace. A namespace may be removed from this setting once it has no sandbox."""
    kubernetes_kind: Annotated[Literal["auto", "pod", "sandbox"], Env("SANDHERD_KUBERNETES_KIND")] = "auto"
    """The kind of object of a sandbox: a Pod, or a Sandbox of agents.x-k8s.io; `auto`: a Sandbox if the cluster has it.
    """
    kubernetes_owner: Annotated[Owner | None, Env("SANDHERD_KUBERNETES_OWNER")] = None
    """The owner of the sandboxes' objects, such as Deployment/sandherd-spawner, in the same namespace. If it is
    deleted, Kubernetes deletes the sandboxes."""
    kubernetes_service_account: Annotated[ObjectName | None, Env("SANDHERD_KUBERNETES_SERVICE_ACCOUNT")] = None
    """The service account of the pods. Its token is not mounted."""
    kubernetes_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"], Env("SANDHERD_KUBERNETES_PULL_POLICY")
    ] = "IfNotPresent"
    """When a node pulls an image."""
    kubernetes_pull_secrets: Annotated[frozenset[ObjectName], Names, Env("SANDHERD_KUBERNETES_PULL_SECRETS")] = (
        frozenset()
    )
    """The names of the image pull secrets in the namespace."""
    kubernetes_user: Annotated[Users, Env("SANDHERD_KUBERNETES_USER")] = "1000:1000"
    """The uid and gid that everything in a pod runs as."""
    kubernetes_read_only: Annotated[bool, Env("SANDHERD_KUBERNETES_READ_ONLY")] = True
    """Whether the image's folders are read-only in a pod, so that agents write only to the sandbox's own folders."""
    kubernetes_cpu: Annotated[Cores, Env("SANDHERD_KUBERNETES_CPU")] = "1"
    """How many cores a sandbox gets, such as 2 or 500m."""
    kubernetes_storage_gb: Annotated[float, _DISK, Field(ge=_DISK_GB[0], le=_DISK_GB[1])] = 8
    """The size of a sandbox's disk, in GB of the disk of its node."""
    kubernetes_placement: Annotated[Placement, Env("SANDHERD_KUBERNETES_PLACEMENT")] = Placement()
    """Runtime class, priority class, node selector, tolerations, affinity and spread of sandboxes whose profile has no
    placement of its own."""
    kubernetes_placements: Annotated[dict[SafeName, Placement], Env("SANDHERD_KUBERNETES_PLACEMENTS")] = {}
    """The placement of sandboxes of single profiles, by name."""
    kubernetes_egress: Annotated[frozenset[Destination], Names, Env("SANDHERD_KUBERNETES_EGRESS")] = frozenset()
    """The destinations that sandboxes may reach beside the broker and DNS: networks and pods, with all ports or one,
    such as 10.0.0.0/8, 203.0.113.7/32@443 or models/app=gateway@8080."""
    kubernetes_dns: Annotated[frozenset[Peer], Names, Env("SANDHERD_KUBERNETES_DNS")] = frozenset()
    """The DNS servers of sandboxes, such as kube-system/k8s-app=kube-dns, or 169.254.20.10 for NodeLocal DNSCache; if
    unset, every pod of the cluster."""
    kubernetes_dns_ports: Annotated[frozenset[Port], Names, Env("SANDHERD_KUBERNETES_DNS_PORTS")] = frozenset({53})
    """The ports of the DNS servers' pods; on OpenShift 5353."""
    kubernetes_ingress: Annotated[frozenset[Peer], Names, Env("SANDHERD_KUBERNETES_INGRESS")] = frozenset()
    """The sources that may connect to servers in sandboxes: networks, such as 10.0.0.0/8, or the pods of a namespace
    that are not sandboxes, such as team or team/app=web. `nobody`: none. If unset, the namespace of the spawner's own
    pod, or else that of the sandboxes."""
    kubernetes_ports: Annotated[frozenset[OpenPort], Names, Env("SANDHERD_KUBERNETES_PORTS")] = frozenset(
        {12_000, 12_001}
    )
    """The ports of sandboxes that are open to the sources in kubernetes_ingress. An agent server uses the first free
    one."""
    kubernetes_pending_timeout: Annotated[Positive, Env("SANDHERD_KUBERNETES_PENDING_TIMEOUT")] = 300
    """How long a pod may wait for a node and its image before it is removed. The spawn timeout should not be less."""
