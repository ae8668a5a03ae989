"""What a cluster is told: every object as its schema wants it, for every way that the settings allow."""

import itertools
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandherd.contracts.specs import Limits
from sandherd.settings import Settings
from sandherd.settings.kubernetes import Placement, Toleration
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import BoxSpec, File
from spawner.runtimes.kubernetes import manifests, network, rights, states
from spawner.runtimes.kubernetes.manifests import Kind
from spawner.runtimes.kubernetes.network import Entrance
from spawner.runtimes.kubernetes.opening import kind as kind_of
from spawner.runtimes.kubernetes.opening import sources
from tests.doubles.kubernetes import schemas

ROOT = Path(__file__).parents[3]
VERSION = "1.37"
SECRET = "the-joiner's-secret"
SPEC = BoxSpec(
    name="sbx-1",
    labels={HERD: "0123456789abcdef", "sandherd.dev/project": "p1-"},
    image=None,
    program=["/opt/sandherd/bin/sandherd-box"],
    environment={"SANDHERD_STATE_DIR": "/sandherd/state"},
    files=[File("/sandherd/state/joiner.creds", SECRET.encode())],
    limits=Limits(memory_mb=512),
    stop_grace=7.4,
    profile="heavy",
)
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sandherd-spawner", "uid": "1-2-3"}
PLACEMENT = Placement(
    runtime_class="gvisor",
    node_selector={"kubernetes.io/arch": "amd64"},
    tolerations=(
        Toleration(key="gpu", operator="Equal", value="yes", effect="NoExecute", seconds=60),
        Toleration(),
    ),
)
MATRIX = [
    Kind(
        image="registry:5000/a/b@sha256:" + "0" * 64,
        read_only=read_only,
        pull_secrets=secrets,
        service_account=account,
        owner=owner,
        placement=placement,
        cpu="500m",
    )
    for read_only, secrets, account, owner, placement in itertools.product(
        (True, False), ((), ("one", "two")), (None, "sandboxes"), (None, OWNER), (Placement(), PLACEMENT)
    )
]


def valid(item: dict[str, Any]) -> dict[str, Any]:
    schemas.validate(item, VERSION)
    return item


@pytest.mark.parametrize("kind", MATRIX)
def test_every_pod_fits_the_schema(kind: Kind) -> None:
    """With every field known, whatever is set; as it is, and as the template of a Sandbox."""
    for spec in (SPEC, replace(SPEC, ports=[8000], image="other:1")):
        valid(manifests.pod(spec, kind))
        for version in ("v1alpha1", "v1beta1"):
            template = manifests.sandbox(spec, kind, version)["spec"]["podTemplate"]
            valid({"apiVersion": "v1", "kind": "Pod", **template})


def test_a_pod_may_do_as_little_as_a_worker_can_do_with() -> None:
    """It is nobody, has no token, no capability and no way to more, and writes nowhere but in its own folders."""
    spec = manifests.pod(SPEC, Kind(image="i"))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"] == {"memory": "512Mi", "cpu": "1", "ephemeral-storage": "8192Mi"}
    sized = manifests.pod(replace(SPEC, limits=Limits(cores=1.5)), Kind(image="i"))["spec"]["containers"][0]
    assert sized["resources"]["limits"]["cpu"] == "1500m"
    assert {volume["name"]: set(volume) for volume in spec["volumes"]} == {
        "sandherd": {"name", "emptyDir"},
        "tmp": {"name", "emptyDir"},
    }
    assert spec["terminationGracePeriodSeconds"] == 7


def test_everything_has_the_labels_that_tools_for_clusters_look_for() -> None:
    """All six that are recommended, on what is made and on what a controller makes of it; and it has its owner."""
    kind = Kind(image="i", owner=OWNER)
    sandbox = manifests.sandbox(SPEC, kind, "v1beta1")
    policy = network.policy(SPEC.labels[HERD], "nats://10.1.2.3", [], OWNER)
    template = sandbox["spec"]["podTemplate"]["metadata"]
    for told in (manifests.pod(SPEC, kind)["metadata"], sandbox["metadata"], template, policy["metadata"]):
        labels = {key.partition("/")[2]: value for key, value in told["labels"].items() if key.startswith("app.")}
        assert labels == {
            "name": "sandherd-sandbox",
            "instance": SPEC.labels[HERD],
            "version": metadata.version("sandherd"),
            "component": "sandbox",
            "part-of": "sandherd",
            "managed-by": "sandherd",
        }
        assert told is template or told["ownerReferences"] == [OWNER]


def test_no_file_of_a_box_is_in_any_object() -> None:
    """They may be secrets: whoever may read pods, or their cluster's log, would read them."""
    kind = Kind(image="i", owner=OWNER)
    assert SECRET not in str(manifests.pod(SPEC, kind)) + str(manifests.sandbox(SPEC, kind, "v1beta1"))


def test_a_pod_that_may_do_more_is_refused_by_the_double() -> None:
    """It holds pods to the strictest of the Pod Security Standards; so a namespace may enforce that."""
    from tests.doubles.kubernetes.admission import admit
    from tests.doubles.kubernetes.store import ApiError

    for kind in MATRIX:
        admit(manifests.pod(SPEC, kind))
    for field, weaker in (("securityContext", {}), ("hostNetwork", True)):
        pod = manifests.pod(SPEC, MATRIX[0])
        pod["spec"][field] = weaker
        with pytest.raises(ApiError, match="restricted"):
            admit(pod)


def test_a_pod_is_placed_as_its_profile_says() -> None:
    """Else as the herd is set."""
    kind = Kind(image="i", placement=Placement(runtime_class="runc"), placements={"heavy": PLACEMENT})
    placed = manifests.pod_spec(SPEC, kind)
    assert (placed["runtimeClassName"], placed["nodeSelector"]) == ("gvisor", {"kubernetes.io/arch": "amd64"})
    assert placed["tolerations"][0]["tolerationSeconds"] == 60
    assert manifests.pod_spec(replace(SPEC, profile=None), kind)["runtimeClassName"] == "runc"


@pytest.mark.parametrize("text", ["a", "a-", "-", "a" * 63, "UPPER", "with space", "ü", ""])
def test_whatever_a_thing_is_called_its_cluster_takes_the_name(text: str) -> None:
    """Different texts stay different, and what a cluster takes stays as it is."""
    item = manifests.pod(replace(SPEC, name=text or "x", labels={HERD: text}), Kind(image="i"))
    valid(item)
    from tests.doubles.kubernetes.admission import labels

    labels(item)
    assert len(item["metadata"]["name"]) <= 63
    assert manifests.label("a") == "a"
    assert manifests.label("a-") != manifests.label("a--")


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        (
            "nats://10.1.2.3",
            {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 4222}]},
        ),
        (
            "tls://nats.messaging.svc.cluster.local:4443",
            {
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "messaging"}}}],
                "ports": [{"protocol": "TCP", "port": 4443}],
            },
        ),
        ("wss://broker.example.org", {"ports": [{"protocol": "TCP", "port": 443}]}),
        ("nats://example.org", {"ports": [{"protocol": "TCP", "port": 4222}]}),
    ],
)
def test_the_network_of_a_herd_is_closed_but_for_what_it_needs(address: str, rule: dict[str, Any]) -> None:
    """Nobody reaches a sandbox; it reaches names, its broker as closely as that is known, and what is allowed."""
    policy = valid(network.policy("h1", address, ["10.0.0.0/8@443", "2001:db8::/32"], OWNER))
    assert policy["spec"]["ingress"] == []
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    names, broker, *allowed = policy["spec"]["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert broker == rule
    assert allowed == [
        {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"protocol": "TCP", "port": 443}]},
        {"to": [{"ipBlock": {"cidr": "2001:db8::/32"}}]},
    ]


def test_only_who_is_named_is_let_in_and_to_the_ports_that_are_named() -> None:
    """A network, or the pods of a namespace; never by that a sandbox, of whatever herd."""
    named = ["10.1.0.0/16", "fd00::/8", "team", "team/app.kubernetes.io/name=web"]
    (rule,) = valid(network.policy("h1", "nats://10.1.2.3", [], None, Entrance(named, [12000, 12001])))["spec"][
        "ingress"
    ]
    assert rule["ports"] == [{"protocol": "TCP", "port": 12000}, {"protocol": "TCP", "port": 12001}]
    v4, v6, team, web = rule["from"]
    assert (v4, v6) == ({"ipBlock": {"cidr": "10.1.0.0/16"}}, {"ipBlock": {"cidr": "fd00::/8"}})
    others = [{"key": "app.kubernetes.io/name", "operator": "NotIn", "values": ["sandherd-sandbox"]}]
    assert team == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}},
        "podSelector": {"matchExpressions": others},
    }
    assert web["podSelector"] == {"matchExpressions": others, "matchLabels": {"app.kubernetes.io/name": "web"}}
    sandbox = manifests.pod(SPEC, Kind(image="i"))["metadata"]["labels"]
    assert sandbox["app.kubernetes.io/name"] in others[0]["values"]


def test_who_is_let_in_is_what_is_set_or_else_who_is_beside_the_spawner(tmp_path: Path) -> None:
    """In a pod that is its own namespace; elsewhere that of sandboxes. `nobody` lets nobody in."""
    own = tmp_path / "namespace"
    usual = Settings(sandbox_image="i", kubernetes_namespace="boxes")
    assert sources(usual, own) == ["boxes"]
    own.write_text("spawners\n")
    assert sources(usual, own) == ["spawners"]
    assert sources(usual.model_copy(update={"kubernetes_ingress": frozenset({"b", "a"})}), own) == ["a", "b"]
    assert (kind_of(usual).closed, kind_of(usual).ports) == (False, (12000, 12001))
    assert kind_of(usual.model_copy(update={"kubernetes_ingress": frozenset({"nobody"})})).closed
    assert valid(network.policy("h1", "nats://10.1.2.3", []))["spec"]["ingress"] == []


@pytest.mark.parametrize("wrong", ["A", "team/", "team/=x", "team/a=b c", "10.0.0.0/33", "team/a"])
def test_who_is_let_in_is_said_so_that_a_cluster_takes_it(wrong: str) -> None:
    """Anything else is refused when the settings are read."""
    with pytest.raises(ValueError, match="no network"):
        Settings(kubernetes_ingress=frozenset({wrong}))


def test_a_pod_is_reached_at_its_address_once_it_has_one() -> None:
    """An address of the sixth version stands in brackets in a URL."""
    assert [states.host({"status": status}) for status in ({}, {"podIP": "10.0.0.7"}, {"podIP": "fd00::7"})] == [
        *(None, "10.0.0.7", "[fd00::7]")
    ]


def test_the_role_is_what_is_deployed() -> None:
    """It fits its schema, and the file was made of it."""
    for item in rights.role():
        valid(item)
    file = (ROOT / "deploy" / "kubernetes" / "role.yaml").read_text()
    assert file == rights.document()
    assert list(yaml.safe_load_all(file)) == rights.role()


def test_every_setting_reaches_the_pods() -> None:
    """What is said in the settings is what pods are made of."""
    settings = Settings(
        sandbox_image="image:1",
        kubernetes_user="1001:2002",
        kubernetes_read_only=False,
        kubernetes_cpu="2",
        kubernetes_storage_gb=0.5,
        kubernetes_pull_policy="Always",
        kubernetes_pull_secrets=frozenset({"b", "a"}),
        kubernetes_service_account="sandboxes",
        kubernetes_placements={"heavy": PLACEMENT},
    )
    spec = valid(manifests.pod(SPEC, kind_of(settings, OWNER)))["spec"]
    (container,) = spec["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("image:1", "Always")
    assert container["resources"]["limits"]["ephemeral-storage"] == "512Mi"
    assert container["resources"]["limits"]["cpu"] == "2"
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (1001, 2002)
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert (spec["serviceAccountName"], spec["runtimeClassName"]) == ("sandboxes", "gvisor")
