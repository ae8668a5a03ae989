"""The settings of the Kubernetes runtime."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from sandherd.contracts.names import SafeName
from sandherd.settings.fields import Env, Names, Positive

ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""What a cluster calls a thing."""
_KEY: Final = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
LabelKey = Annotated[str, StringConstraints(pattern=f"^{_KEY}$")]
LabelValue = Annotated[str, StringConstraints(pattern=f"^{_VALUE}$")]
Owner = Annotated[str, StringConstraints(pattern=r"^(Deployment|StatefulSet)/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
Users = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}:[0-9]{1,9}$")]
"""A user and a group by number; never root, which a cluster refuses to a pod that says so."""
Cores = Annotated[str, StringConstraints(pattern=r"^([0-9]+(\.[0-9]{1,3})?|[0-9]+m)$")]


def _network(text: str) -> str:
    network, _, port = text.partition("@")
    ipaddress.ip_network(network)
    if port and not 0 < int(port) < 65_536:
        raise ValueError(f"{port} is no port")
    return text


Destination = Annotated[str, AfterValidator(_network)]
"""A network, as 10.0.0.0/8, and a port of it, as 10.0.0.0/8@443; without one all of its ports."""


NOBODY: Final = "nobody"
_PODS: Final = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?(/{_KEY}={_VALUE})?")


def _source(text: str) -> str:
    if _PODS.fullmatch(text):
        return text
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is no network, and neither namespace nor namespace/label=value") from None


Source = Annotated[str, AfterValidator(_source)]
"""A network, as 10.0.0.0/8; or the pods of a namespace, as team or team/app=web."""
OpenPort = Annotated[int, Field(ge=1024, le=65_535)]


class Toleration(BaseModel):
    """What a pod puts up with at a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: LabelKey | None = None
    """None, with `operator: Exists`: whatever it is."""
    operator: Literal["Exists", "Equal"] = "Exists"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    seconds: Annotated[int, Field(ge=0)] | None = None
    """For how long, with NoExecute; None: for ever."""


class Placement(BaseModel):
    """On which nodes pods run, and by what; of one profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime_class: ObjectName | None = None
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


class KubernetesSettings(BaseModel):
    """Where the cluster is, and how pods are made there."""

    kubernetes_config: Annotated[Path | None, Env("KUBECONFIG")] = None
    """The kubeconfig file; nothing: the service account that the spawner's own pod has, or else ~/.kube/config."""
    kubernetes_namespace: Annotated[SafeName, Env("SANDHERD_KUBERNETES_NAMESPACE")] = "sandherd"
    """The namespace of sandboxes; it has to be there."""
    kubernetes_kind: Annotated[Literal["auto", "pod", "sandbox"], Env("SANDHERD_KUBERNETES_KIND")] = "auto"
    """What a sandbox is made as: a Pod, or a Sandbox of agents.x-k8s.io; `auto`: a Sandbox where the cluster has it."""
    kubernetes_owner: Annotated[Owner | None, Env("SANDHERD_KUBERNETES_OWNER")] = None
    """What sandboxes belong to and are removed with, as Deployment/sandherd-spawner; it is in the same namespace."""
    kubernetes_service_account: Annotated[ObjectName | None, Env("SANDHERD_KUBERNETES_SERVICE_ACCOUNT")] = None
    """Whose pods are made; they get no token of it."""
    kubernetes_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"], Env("SANDHERD_KUBERNETES_PULL_POLICY")
    ] = "IfNotPresent"
    """When a node fetches an image."""
    kubernetes_pull_secrets: Annotated[frozenset[ObjectName], Names, Env("SANDHERD_KUBERNETES_PULL_SECRETS")] = (
        frozenset()
    )
    """The names of secrets in the namespace that nodes fetch images with."""
    kubernetes_user: Annotated[Users, Env("SANDHERD_KUBERNETES_USER")] = "1000:1000"
    """The user and the group, by number, that everything in a pod runs as."""
    kubernetes_read_only: Annotated[bool, Env("SANDHERD_KUBERNETES_READ_ONLY")] = True
    """Whether a pod may write to its own folders only, and not to its image's."""
    kubernetes_cpu: Annotated[Cores, Env("SANDHERD_KUBERNETES_CPU")] = "1"
    """How many cores a sandbox gets, as 2 or 500m."""
    kubernetes_storage_gb: Annotated[float, Env("SANDHERD_KUBERNETES_STORAGE_GB"), Field(ge=0.125, le=4096)] = 8
    """How much of its node's disk a sandbox gets."""
    kubernetes_placement: Annotated[Placement, Env("SANDHERD_KUBERNETES_PLACEMENT")] = Placement()
    """Runtime class, node selector and tolerations of sandboxes whose profile has none of its own."""
    kubernetes_placements: Annotated[dict[SafeName, Placement], Env("SANDHERD_KUBERNETES_PLACEMENTS")] = {}
    """The same for the profiles that are named here."""
    kubernetes_egress: Annotated[frozenset[Destination], Names, Env("SANDHERD_KUBERNETES_EGRESS")] = frozenset()
    """What sandboxes may reach beside the broker and the cluster's names, as 10.0.0.0/8 or 203.0.113.7/32@443."""
    kubernetes_ingress: Annotated[frozenset[Source], Names, Env("SANDHERD_KUBERNETES_INGRESS")] = frozenset()
    """Who is let in to servers in sandboxes: 10.0.0.0/8, or a namespace's pods that are no sandboxes, as team or
    team/app=web; `nobody` at all; nothing: the namespace of the spawner's own pod, or else that of sandboxes."""
    kubernetes_ports: Annotated[frozenset[OpenPort], Names, Env("SANDHERD_KUBERNETES_PORTS")] = frozenset(
        {12_000, 12_001}
    )
    """The ports of sandboxes that they are let in to; an agent server takes the first of them that is free."""
    kubernetes_pending_timeout: Annotated[Positive, Env("SANDHERD_KUBERNETES_PENDING_TIMEOUT")] = 300
    """How long a pod may wait for a node and its image; it is removed then. The spawn timeout should be no shorter."""
