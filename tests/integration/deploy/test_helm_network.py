"""The chart's network: reachability is computed from the policies as in a cluster."""

import ipaddress
from typing import Any

import pytest

from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.kubernetes import manifests, network
from tests.integration.deploy.charts import GIVEN, NAMESPACE, PARTS, SERVICES, Json, of_kind, pods, rendered

HTTP, BROKER, DATABASE, API, COLLECTOR, GIT_PROXY = 8000, 4222, 5432, 443, 4318, 9402
NAMED = {"http": HTTP, "git-proxy": GIT_PROXY}


class Place:
    """The location of a peer: a namespace, labels, or an address outside of the cluster."""

    def __init__(self, namespace: str = "", labels: Json | None = None, address: str = "10.9.9.9") -> None:
        self.namespace, self.labels, self.address = namespace, labels or {}, address


NATS = Place("nats", {"app.kubernetes.io/name": "nats"})
POSTGRES, SERVER, OUTSIDE = Place(address="10.1.2.3"), Place(address="10.96.0.1"), Place(address="203.0.113.7")
STRANGER = Place("default", {"app": "web"})
DNS = Place("kube-system", {"k8s-app": "kube-dns"})


def labels_of(name: str) -> dict[str, Any]:
    """The labels of a component's pods."""
    labels: dict[str, Any] = {one: pod["metadata"]["labels"] for one, pod in pods(rendered())}[name]
    return labels


def ours(name: str) -> Place:
    return Place(NAMESPACE, labels_of(name))


def reaches(objects: list[Json], one: Place, other: Place, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies of both ends permit the connection."""
    out = may(objects, one, "egress", "to", other, port, protocol)
    return out and may(objects, other, "ingress", "from", one, port, protocol)


def may(objects: list[Json], who: Place, way: str, side: str, other: Place, port: int, protocol: str) -> bool:
    """Whether policies permit it: a policy that selects a pod denies all but what it and other policies name."""
    picking = [
        one
        for one in of_kind(objects, "NetworkPolicy")
        if one["metadata"].get("namespace", NAMESPACE) == who.namespace
        and way.capitalize() in one["spec"]["policyTypes"]
        and picks(one["spec"]["podSelector"], who.labels)
    ]
    rules = [rule for one in picking for rule in one["spec"].get(way) or []]
    return not picking or any(fits(rule, side, other, port, protocol) for rule in rules)


def fits(rule: Json, side: str, other: Place, port: int, protocol: str) -> bool:
    ports = [(one["protocol"], NAMED.get(one["port"], one["port"])) for one in rule.get("ports", [])]
    peers = rule.get(side)
    return (not ports or (protocol, port) in ports) and (not peers or any(meant(peer, other) for peer in peers))


def meant(peer: Json, other: Place) -> bool:
    if "ipBlock" in peer:
        return ipaddress.ip_address(other.address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if not other.namespace:
        return False
    inside = (
        picks(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
        if "namespaceSelector" in peer
        else other.namespace == NAMESPACE
    )
    return inside and picks(peer.get("podSelector", {}), other.labels)


def picks(selector: Json, labels: Json) -> bool:
    named = selector.get("matchLabels", {}).items() <= labels.items()
    return named and all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", []))


def all_that_reach(objects: list[Json], other: Place, port: int) -> set[str]:
    return {name for name in PARTS if reaches(objects, ours(name), other, port)}


def test_each_component_reaches_only_what_it_needs() -> None:
    """Broker, database and cluster are reachable only for their clients."""
    objects = rendered({"telemetry": {"otlpEndpoint": "http://collector.monitoring:4318"}})
    assert all_that_reach(objects, NATS, BROKER) == {*SERVICES, "provision"}
    assert all_that_reach(objects, NATS, 8222) == set()
    assert all_that_reach(objects, POSTGRES, DATABASE) == {"event-ingest", "migrate", "migrate-after"}
    assert all_that_reach(objects, SERVER, API) == {"spawner"}
    assert all_that_reach(objects, Place("monitoring", {}), COLLECTOR) == set(SERVICES)
    assert all_that_reach(objects, STRANGER, 80) == all_that_reach(objects, STRANGER, BROKER) == set()
    assert all_that_reach(objects, OUTSIDE, BROKER) == set(), "a broker of somebody else's"
    assert {name for name in PARTS if reaches(objects, ours(name), DNS, 53, "UDP")} == set(PARTS)


def test_component_without_a_policy_is_closed() -> None:
    """A component without a policy is closed in both directions, whatever else the release contains."""
    new = Place(NAMESPACE, {**labels_of("monitor"), "app.kubernetes.io/component": "new"})
    objects = rendered({"monitoring": {"enabled": True}})
    assert not any(
        reaches(objects, new, place, port) for place, port in ((NATS, BROKER), (POSTGRES, DATABASE), (DNS, 53))
    )
    assert not any(reaches(objects, place, new, HTTP) for place in (STRANGER, ours("monitor"), ours("test")))


def test_only_a_spawner_of_pods_reaches_the_cluster() -> None:
    """With another runtime the spawner has neither a token nor a route to the cluster."""
    assert all_that_reach(rendered({"settings": {"runtime": "remote"}}), SERVER, API) == set()


def test_only_tests_and_monitoring_reach_the_services() -> None:
    """No other service or pod reaches them; with monitoring the named readers do, or any in the cluster."""
    reader = Place("monitoring", {"app": "prometheus"})
    named = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for values, readers in (
        ({}, []),
        ({"monitoring": {"enabled": True}}, [STRANGER, reader]),
        ({"monitoring": {"enabled": True}, "networkPolicy": {"metricsFrom": [named]}}, [reader]),
    ):
        objects = rendered(values)
        for service in SERVICES:
            assert {name for name in PARTS if reaches(objects, ours(name), ours(service), HTTP)} == {"test"}
            assert [one for one in (STRANGER, reader) if reaches(objects, one, ours(service), HTTP)] == readers
            assert not reaches(objects, reader, ours(service), 22)


@pytest.mark.parametrize("namespace", ["", NAMESPACE])
def test_sandboxes_reach_the_broker_only(namespace: str) -> None:
    """The chart closes sandboxes before any exist, and the spawner's policy opens what the settings permit."""
    objects = rendered({"sandboxes": {"namespace": namespace}})
    where = namespace or f"{NAMESPACE}-sandboxes"
    box = Place(where, {**manifests.MANAGED, HERD: "herd"})
    others = [(NATS, BROKER), (STRANGER, 80), (POSTGRES, DATABASE), (SERVER, API), (DNS, 53)]
    others += [(STRANGER, BROKER), (OUTSIDE, BROKER)]
    assert [port for place, port in others if reaches(objects, box, place, port)] == []
    opened = {**network.policy("herd", GIVEN["nats"]["url"], []), "kind": "NetworkPolicy"}
    opened["metadata"]["namespace"] = where
    objects = [*objects, opened]
    assert [port for place, port in others if reaches(objects, box, place, port)] == [BROKER, 53]
    assert not any(reaches(objects, place, box, 8000) for place in (STRANGER, ours("monitor"), NATS))
    assert not any(reaches(objects, box, ours(service), HTTP) for service in SERVICES)
    neighbour = Place(where, box.labels)
    assert not reaches(objects, box, neighbour, 8000)


def test_other_pods_of_the_namespace_are_not_restricted() -> None:
    """A broker or a database beside the services is not affected by the chart's policies."""
    beside = Place(NAMESPACE, {"app.kubernetes.io/name": "nats", "app.kubernetes.io/instance": "nats"})
    assert reaches(rendered(), STRANGER, beside, BROKER)
    assert reaches(rendered(), beside, STRANGER, 80)


@pytest.mark.parametrize(
    "address",
    [
        "nats://nats.nats:4222",
        "nats://nats.nats.svc.cluster.local",
        "tls://broker.example.org:4443",
        "wss://broker.example.org",
        "ws://10.2.3.4",
        "nats://10.2.3.4:4222,nats://10.2.3.5:4222, nats://[2001:db8::1]:4223",
    ],
)
def test_broker_policy_equals_the_endpoints_of_the_spawner(address: str) -> None:
    """Chart and spawner have one rule: sandboxes may reach the broker's endpoints as the services may."""
    policy = next(
        one
        for one in of_kind(rendered({"nats": {"url": address}}), "NetworkPolicy")
        if one["metadata"]["name"].endswith("-broker")
    )
    ours_by_code = network.policy("herd", address, [])["spec"]["egress"][1:]
    assert policy["spec"]["egress"] == ours_by_code


def test_job_has_its_own_network_policy() -> None:
    """Before an upgrade only hooks are new: the policies of the earlier release may name another broker or database."""
    objects = rendered({"nats": {"url": "nats://nats.elsewhere:4333"}, "networkPolicy": {"database": {"port": 6432}}})
    for job in of_kind(objects, "Job"):
        part = job["spec"]["template"]["metadata"]["labels"]
        then = [one for one in objects if one["metadata"]["name"].endswith("-deny") or comes_before(one, job)]
        who = Place(NAMESPACE, part)
        assert reaches(then, who, DNS, 53, "UDP")
        provisions = part["app.kubernetes.io/component"] == "provision"
        assert reaches(then, who, Place("elsewhere"), 4333) == provisions
        assert reaches(then, who, POSTGRES, 6432) != provisions
    named = {one["metadata"]["name"] for one in of_kind(rendered({"setup": {"migrate": False}}), "NetworkPolicy")}
    assert not any(name.endswith("-migrate") for name in named)


def comes_before(one: Json, job: Json) -> bool:
    """Whether helm creates this earlier than the job, at every event at which it creates the job."""
    notes, of_job = one["metadata"].get("annotations", {}), job["metadata"]["annotations"]
    moments, wanted = (set(annotations.get("helm.sh/hook", "").split(",")) for annotations in (notes, of_job))
    return wanted <= moments and int(notes["helm.sh/hook-weight"]) < int(of_job["helm.sh/hook-weight"])


def test_policies_can_be_disabled() -> None:
    """The policies can be disabled, as a network may enforce none, or have others."""
    assert of_kind(rendered({"networkPolicy": {"enabled": False}}), "NetworkPolicy") == []
