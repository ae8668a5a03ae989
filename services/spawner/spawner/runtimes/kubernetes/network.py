"""What a cluster is told of the network of all boxes of a herd. All pure."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.kubernetes.manifests import MANAGED, PREFIX, Json, label, recommended

_KIND: Final = "app.kubernetes.io/name"
_NAMESPACE: Final = "kubernetes.io/metadata.name"
"""The label that every namespace has of itself."""
_NATS: Final = 4222
_PORTS: Final = {"nats": _NATS, "tls": _NATS, "ws": 80, "wss": 443}


@dataclass(frozen=True)
class Entrance:
    """Who is let in to boxes, each as a network, or as a namespace and perhaps a label; and to which ports."""

    sources: Sequence[str]
    ports: Sequence[int]


def policy(
    herd: str,
    brokers: str,
    egress: Sequence[str],
    owner: Mapping[str, Any] | None = None,
    entrance: Entrance | None = None,
) -> Json:
    """The network of a herd's boxes: they reach names, the broker, and what is allowed.

    Nobody reaches them but by the entrance, where there is one; and no other box does by that.
    """
    rules: list[Json] = [_names()]
    rules += [_broker(address.strip()) for address in brokers.split(",")]
    rules += [_destination(one) for one in egress]
    found: Json = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{PREFIX}{herd}", "labels": recommended(herd) | {HERD: label(herd)}},
        "spec": {
            "podSelector": {"matchLabels": {HERD: label(herd)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [_let_in(entrance)] if entrance and entrance.sources else [],
            "egress": rules,
        },
    }
    if owner:
        found["metadata"]["ownerReferences"] = [dict(owner)]
    return found


def _let_in(entrance: Entrance) -> Json:
    found: Json = {"from": [_source(one) for one in entrance.sources]}
    if entrance.ports:
        found["ports"] = [{"protocol": "TCP", "port": port} for port in entrance.ports]
    return found


def _source(text: str) -> Json:
    """A network, or the pods of a namespace: all that are no sandboxes, whoever's."""
    try:
        return {"ipBlock": {"cidr": str(ipaddress.ip_network(text))}}
    except ValueError:
        namespace, _, wanted = text.partition("/")
    key, _, value = wanted.partition("=")
    no_sandbox = {"key": _KIND, "operator": "NotIn", "values": [MANAGED[_KIND]]}
    pods: Json = {"matchExpressions": [no_sandbox]} | ({"matchLabels": {key: value}} if key else {})
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}}, "podSelector": pods}


def _names() -> Json:
    anywhere: Json = {"namespaceSelector": {}}
    return {"to": [anywhere], "ports": [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]}


def _broker(address: str) -> Json:
    """By its address, or by its namespace where its name says that it is a service; else by its port alone.

    A name of two parts may be a service's, and may as well be anybody's on the internet.
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
    network, _, port = text.partition("@")
    found: Json = {"to": [{"ipBlock": {"cidr": str(ipaddress.ip_network(network))}}]}
    if port:
        found["ports"] = [{"protocol": "TCP", "port": int(port)}]
    return found
