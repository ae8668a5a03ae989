"""The network policy for all boxes of a herd. Pure."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.kubernetes.manifests import MANAGED, PREFIX, Json, label, recommended_labels

_NAME_LABEL: Final = "app.kubernetes.io/name"
_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""The label of every namespace whose value is the namespace's name."""
_NATS_PORT: Final = 4222
_DEFAULT_PORTS: Final = {"nats": _NATS_PORT, "tls": _NATS_PORT, "ws": 80, "wss": 443, "http": 80, "https": 443}


@dataclass(frozen=True)
class IngressRule:
    """Allowed ingress. A source is a network, or a namespace, optionally with a label of its pods.

    `ports`: the only open ports; empty: all ports.
    """

    sources: Sequence[str]
    ports: Sequence[int]


@dataclass(frozen=True)
class DnsServers:
    """The DNS servers that boxes may query, in the form of `IngressRule.sources`; empty: all pods of the cluster."""

    servers: Sequence[str] = ()
    ports: Sequence[int] = (53,)


def policy(
    herd: str,
    services: str,
    egress: Sequence[str],
    owner: Mapping[str, Any] | None = None,
    *,
    ingress: IngressRule | None = None,
    dns: DnsServers = DnsServers(),  # frozen, so that the default can't change
) -> Json:
    """The network policy of a herd's boxes: egress to DNS, the herd's services, and the allowed destinations.

    `services`: the URLs of the broker, and of the git proxy if there is one.
    `ingress`: the only allowed ingress; None: no ingress. It never includes the boxes of a namespace.
    """
    rules: list[Json] = [_dns_rule(dns)]
    rules += [_service(address.strip()) for address in services.split(",")]
    rules += [_destination(text) for text in egress]
    manifest: Json = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{PREFIX}{herd}", "labels": recommended_labels(herd) | {HERD: label(herd)}},
        "spec": {
            "podSelector": {"matchLabels": {HERD: label(herd)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [_ingress_rule(ingress)] if ingress and ingress.sources else [],
            "egress": rules,
        },
    }
    if owner:
        manifest["metadata"]["ownerReferences"] = [dict(owner)]
    return manifest


def _ingress_rule(ingress: IngressRule) -> Json:
    rule: Json = {"from": [_source(text) for text in ingress.sources]}
    if ingress.ports:
        rule["ports"] = [{"protocol": "TCP", "port": port} for port in ingress.ports]
    return rule


def _source(text: str) -> Json:
    """A network, or the pods of a namespace except sandboxes of any herd."""
    peer = _peer(text)
    if "namespaceSelector" in peer:
        no_sandbox = {"key": _NAME_LABEL, "operator": "NotIn", "values": [MANAGED[_NAME_LABEL]]}
        peer["podSelector"] = {"matchExpressions": [no_sandbox]} | peer.get("podSelector", {})
    return peer


def _peer(text: str) -> Json:
    """A network, or the pods of a namespace."""
    try:
        return {"ipBlock": {"cidr": str(ipaddress.ip_network(text))}}
    except ValueError:
        namespace, _, pod_label = text.partition("/")
    key, _, value = pod_label.partition("=")
    peer: Json = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: namespace}}}
    return peer | ({"podSelector": {"matchLabels": {key: value}}} if key else {})


def _dns_rule(dns: DnsServers) -> Json:
    peers = [_peer(text) for text in dns.servers] or [{"namespaceSelector": {}}]
    ports = [{"protocol": protocol, "port": port} for port in dns.ports for protocol in ("UDP", "TCP")]
    return {"to": peers, "ports": ports}


def _service(address: str) -> Json:
    """The egress rule for a URL: to its address, or to a namespace if its host is a Kubernetes service (`*.svc`).

    For any other host name, the rule limits only the port. A name of two parts may be a service or an internet host.
    """
    parts = urlsplit(address)
    ports = [{"protocol": "TCP", "port": parts.port or _DEFAULT_PORTS.get(parts.scheme, _NATS_PORT)}]
    host = parts.hostname or ""
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        labels = host.split(".")
        if len(labels) > 2 and labels[2] == "svc":
            peer: Json = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: labels[1]}}}
            return {"to": [peer], "ports": ports}
        return {"ports": ports}
    return {"to": [{"ipBlock": {"cidr": str(network)}}], "ports": ports}


def _destination(text: str) -> Json:
    peer, _, port = text.partition("@")
    rule: Json = {"to": [_peer(peer)]}
    if port:
        rule["ports"] = [{"protocol": "TCP", "port": int(port)}]
    return rule
