"""The network policy for all boxes of a herd. Pure."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.kubernetes.manifests import MANAGED, PREFIX, Json, label, recommended

_KIND: Final = "app.kubernetes.io/name"
_NAMESPACE: Final = "kubernetes.io/metadata.name"
"""The label of every namespace whose value is the namespace's name."""
_NATS: Final = 4222
_PORTS: Final = {"nats": _NATS, "tls": _NATS, "ws": 80, "wss": 443, "http": 80, "https": 443}


@dataclass(frozen=True)
class IngressRule:
    """Allowed ingress: sources, each a network, or a namespace with an optional label, and ports."""

    sources: Sequence[str]
    ports: Sequence[int]


@dataclass(frozen=True)
class DnsServers:
    """The DNS servers of boxes, in the form of `IngressRule.sources`; empty: all pods of the cluster."""

    servers: Sequence[str] = ()
    ports: Sequence[int] = (53,)


def policy(
    herd: str,
    services: str,
    egress: Sequence[str],
    owner: Mapping[str, Any] | None = None,
    *,
    entrance: IngressRule | None = None,
    dns: DnsServers = DnsServers(),  # frozen, so that the default can't change
) -> Json:
    """The network policy of a herd's boxes: egress to DNS, the herd's services, and the allowed destinations.

    `services`: the URLs of the broker, and of the git proxy if there is one.
    `entrance`: the only allowed ingress; None: no ingress. A namespace in it never includes boxes of that namespace.
    """
    rules: list[Json] = [_dns_rule(dns)]
    rules += [_service(address.strip()) for address in services.split(",")]
    rules += [_destination(one) for one in egress]
    found: Json = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{PREFIX}{herd}", "labels": recommended(herd) | {HERD: label(herd)}},
        "spec": {
            "podSelector": {"matchLabels": {HERD: label(herd)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [_ingress_rule(entrance)] if entrance and entrance.sources else [],
            "egress": rules,
        },
    }
    if owner:
        found["metadata"]["ownerReferences"] = [dict(owner)]
    return found


def _ingress_rule(entrance: IngressRule) -> Json:
    found: Json = {"from": [_source(one) for one in entrance.sources]}
    if entrance.ports:
        found["ports"] = [{"protocol": "TCP", "port": port} for port in entrance.ports]
    return found


def _source(text: str) -> Json:
    """A network, or the pods of a namespace except sandboxes of any herd."""
    found = _peer(text)
    if "namespaceSelector" in found:
        no_sandbox = {"key": _KIND, "operator": "NotIn", "values": [MANAGED[_KIND]]}
        found["podSelector"] = {"matchExpressions": [no_sandbox]} | found.get("podSelector", {})
    return found


def _peer(text: str) -> Json:
    """A network, or the pods of a namespace."""
    try:
        return {"ipBlock": {"cidr": str(ipaddress.ip_network(text))}}
    except ValueError:
        namespace, _, wanted = text.partition("/")
    key, _, value = wanted.partition("=")
    found: Json = {"namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}}}
    return found | ({"podSelector": {"matchLabels": {key: value}}} if key else {})


def _dns_rule(dns: DnsServers) -> Json:
    peers = [_peer(one) for one in dns.servers] or [{"namespaceSelector": {}}]
    return {"to": peers, "ports": [{"protocol": kind, "port": port} for port in dns.ports for kind in ("UDP", "TCP")]}


def _service(address: str) -> Json:
    """The egress rule for a URL: to its address, or to a namespace if its host is a Kubernetes service (`*.svc`).

    For any other host name the rule limits only the port. A name of two parts may be a service or an internet host.
    """
    parts = urlsplit(address)
    ports = [{"protocol": "TCP", "port": parts.port or _PORTS.get(parts.scheme, _NATS)}]
    host = parts.hostname or ""
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        pieces = host.split(".")
        if len(pieces) > 2 and pieces[2] == "svc":
            peer: Json = {"namespaceSelector": {"matchLabels": {_NAMESPACE: pieces[1]}}}
            return {"to": [peer], "ports": ports}
        return {"ports": ports}
    return {"to": [{"ipBlock": {"cidr": str(network)}}], "ports": ports}


def _destination(text: str) -> Json:
    peer, _, port = text.partition("@")
    found: Json = {"to": [_peer(peer)]}
    if port:
        found["ports"] = [{"protocol": "TCP", "port": int(port)}]
    return found
