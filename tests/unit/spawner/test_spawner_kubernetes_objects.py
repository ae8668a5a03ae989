"""What is sent to a cluster: every object as its schema wants it, for every way that the settings allow."""

import itertools
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandherd.contracts.requests import Mount
from sandherd.contracts.specs import SandboxLimits
from sandherd.settings import Settings
from sandherd.settings.kubernetes import Placement, Toleration
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import BoxSpec, File
from spawner.runtimes.kubernetes import manifests, network, rbac, states
from spawner.runtimes.kubernetes.factory import ingress_sources, pod_options
from spawner.runtimes.kubernetes.manifests import PodOptions
from spawner.runtimes.kubernetes.network import IngressRule
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
    limits=SandboxLimits(memory_mb=512),
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
    priority_class="agents",
    affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    spread=("topology.kubernetes.io/zone", "kubernetes.io/hostname"),
)
MATRIX = [
    PodOptions(
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
def test_every_pod_fits_the_schema(kind: PodOptions) -> None:
    """The schema has every field, for all settings, in a pod and in the template of a Sandbox."""
    for spec in (SPEC, replace(SPEC, ports=[8000], image="other:1")):
        valid(manifests.pod(spec, kind))
        for version in ("v1alpha1", "v1beta1"):
            template = manifests.sandbox(spec, kind, version)["spec"]["podTemplate"]
            valid({"apiVersion": "v1", "kind": "Pod", **template})


def test_pod_has_least_privileges() -> None:
    """A numbered user, no token, no capability or new privileges, and only its own folders are writable."""
    spec = manifests.pod(SPEC, PodOptions(image="i"))["spec"]
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
    sized = manifests.pod(replace(SPEC, limits=SandboxLimits(cores=1.5)), PodOptions(image="i"))["spec"]["containers"][
        0
    ]
    assert sized["resources"]["limits"]["cpu"] == "1500m"
    assert {volume["name"]: set(volume) for volume in spec["volumes"]} == {
        "sandherd": {"name", "emptyDir"},
        "tmp": {"name", "emptyDir"},
    }
    assert spec["terminationGracePeriodSeconds"] == 7


def test_every_object_has_the_recommended_labels() -> None:
    """All six are on each object, and on the pod that a controller creates from it; each object has its owner."""
    kind = PodOptions(image="i", owner=OWNER)
    sandbox = manifests.sandbox(SPEC, kind, "v1beta1")
    policy = network.policy(SPEC.labels[HERD], "nats://10.1.2.3", [], OWNER)
    template = sandbox["spec"]["podTemplate"]["metadata"]
    for object_metadata in (manifests.pod(SPEC, kind)["metadata"], sandbox["metadata"], template, policy["metadata"]):
        labels = {
            key.partition("/")[2]: value for key, value in object_metadata["labels"].items() if key.startswith("app.")
        }
        assert labels == {
            "name": "sandherd-sandbox",
            "instance": SPEC.labels[HERD],
            "version": metadata.version("sandherd"),
            "component": "sandbox",
            "part-of": "sandherd",
            "managed-by": "sandherd",
        }
        assert object_metadata is template or object_metadata["ownerReferences"] == [OWNER]


def test_no_file_of_a_box_is_in_any_object() -> None:
    """Files may be secrets, and objects are visible to all who may read pods or the cluster's log."""
    kind = PodOptions(image="i", owner=OWNER)
    assert SECRET not in str(manifests.pod(SPEC, kind)) + str(manifests.sandbox(SPEC, kind, "v1beta1"))


def test_a_pod_that_may_do_more_is_refused_by_the_double() -> None:
    """The double enforces the strictest of the Pod Security Standards, so a namespace may enforce it, too."""
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
    """Without a placement of its profile, a pod is placed by the herd's setting."""
    kind = PodOptions(image="i", placement=Placement(runtime_class="runc"), placements={"heavy": PLACEMENT})
    placed = manifests.pod_spec(SPEC, kind)
    assert (placed["runtimeClassName"], placed["nodeSelector"]) == ("gvisor", {"kubernetes.io/arch": "amd64"})
    assert placed["tolerations"][0]["tolerationSeconds"] == 60
    assert placed["priorityClassName"] == "agents"
    assert placed["affinity"].keys() == {"nodeAffinity"}
    zones, hosts = placed["topologySpreadConstraints"]
    assert (zones["topologyKey"], hosts["topologyKey"]) == PLACEMENT.spread
    labels = manifests.pod(SPEC, kind)["metadata"]["labels"]
    assert zones["labelSelector"]["matchLabels"].items() <= labels.items()
    assert manifests.pod_spec(replace(SPEC, profile=None), kind)["runtimeClassName"] == "runc"


def test_mounts_are_persistent_volume_claims() -> None:
    """A read-only volume is read-only in the claim and in the mount. The owner of its files is changed only once."""
    mounts = (Mount(source="models", target="/models"), Mount(source="cache", target="/var/cache/x", read_only=False))
    spec = valid(manifests.pod(replace(SPEC, mounts=mounts), PodOptions(image="i")))["spec"]
    claims = [one["persistentVolumeClaim"] for one in spec["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"claimName": "models", "readOnly": True}, {"claimName": "cache", "readOnly": False}]
    names = [one["name"] for one in spec["volumes"]]
    assert len(set(names)) == len(names) == 4
    places = [(one["mountPath"], one.get("readOnly", False)) for one in spec["containers"][0]["volumeMounts"]]
    assert places[-2:] == [("/models", True), ("/var/cache/x", False)]
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("text", ["a", "a-", "-", "a" * 63, "UPPER", "with space", "ü", ""])
def test_any_name_becomes_a_valid_object_name(text: str) -> None:
    """Different names stay different, and a valid one is unchanged."""
    item = manifests.pod(replace(SPEC, name=text or "x", labels={HERD: text}), PodOptions(image="i"))
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
def test_network_policy_permits_only_what_is_needed(address: str, rule: dict[str, Any]) -> None:
    """No ingress to a sandbox; DNS, its broker as closely as that is known, and what is allowed are reachable."""
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


def test_pods_of_a_namespace_are_reached_as_networks_are() -> None:
    """Pods of a namespace, such as a gateway to models, can be allowed at one port or at all ports."""
    policy = valid(network.policy("h1", "nats://10.1.2.3", ["models/app=gateway@8080", "models"]))
    one, all_of_them = policy["spec"]["egress"][2:]
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "models"}}
    assert one["to"] == [{"namespaceSelector": namespace, "podSelector": {"matchLabels": {"app": "gateway"}}}]
    assert one["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert all_of_them == {"to": [{"namespaceSelector": namespace}]}


def test_dns_destination_is_configurable() -> None:
    """Other ports (OpenShift), and an address of the node (NodeLocal DNSCache) are supported."""
    dns = network.DnsServers(
        ["169.254.20.10", "openshift-dns/dns.operator.openshift.io/daemonset-dns=default"], [53, 5353]
    )
    names = valid(network.policy("h1", "nats://10.1.2.3", [], dns=dns))["spec"]["egress"][0]
    local, pods = names["to"]
    assert local == {"ipBlock": {"cidr": "169.254.20.10/32"}}
    assert pods["podSelector"] == {"matchLabels": {"dns.operator.openshift.io/daemonset-dns": "default"}}
    requested = {(one["protocol"], one["port"]) for one in names["ports"]}
    assert requested == {(protocol, port) for protocol in ("UDP", "TCP") for port in (53, 5353)}


@pytest.mark.parametrize("wrong", ["models@0", "models@65536", "models/app@80", "10.0.0.1/8@80", "10.0.0.0/8@http"])
def test_destination_must_be_valid_for_the_cluster(wrong: str) -> None:
    """Any other is refused when the settings are read."""
    with pytest.raises(ValueError, match="is not a"):
        Settings(kubernetes_egress=frozenset({wrong}))


def test_ingress_is_limited_to_named_sources_and_ports() -> None:
    """A source is a network, or the pods of a namespace without the sandboxes of any herd."""
    named = ["10.1.0.0/16", "fd00::/8", "team", "team/app.kubernetes.io/name=web"]
    (rule,) = valid(network.policy("h1", "nats://10.1.2.3", [], ingress=IngressRule(named, [12000, 12001])))["spec"][
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
    sandbox = manifests.pod(SPEC, PodOptions(image="i"))["metadata"]["labels"]
    assert sandbox["app.kubernetes.io/name"] in others[0]["values"]


def test_ingress_defaults_to_the_spawners_namespace(tmp_path: Path) -> None:
    """In a pod that is its own namespace; elsewhere that of sandboxes. `nobody` permits none."""
    own = tmp_path / "namespace"
    usual = Settings(sandbox_image="i")
    assert ingress_sources(usual, "boxes", own) == ["boxes"]
    own.write_text("spawners\n")
    assert ingress_sources(usual, "boxes", own) == ["spawners"]
    assert ingress_sources(usual.model_copy(update={"kubernetes_ingress": frozenset({"b", "a"})}), "boxes", own) == [
        "a",
        "b",
    ]
    assert (pod_options(usual).closed, pod_options(usual).ports) == (False, (12000, 12001))
    assert pod_options(usual.model_copy(update={"kubernetes_ingress": frozenset({"nobody"})})).closed
    assert valid(network.policy("h1", "nats://10.1.2.3", []))["spec"]["ingress"] == []


@pytest.mark.parametrize("wrong", ["A", "team/", "team/=x", "team/a=b c", "10.0.0.0/33", "team/a"])
def test_ingress_source_must_be_valid_for_the_cluster(wrong: str) -> None:
    """Any other is refused when the settings are read."""
    with pytest.raises(ValueError, match="not a network"):
        Settings(kubernetes_ingress=frozenset({wrong}))


def test_url_of_a_pod_has_its_address() -> None:
    """An IPv6 address is in brackets in a URL."""
    assert [states.url_host({"status": status}) for status in ({}, {"podIP": "10.0.0.7"}, {"podIP": "fd00::7"})] == [
        *(None, "10.0.0.7", "[fd00::7]")
    ]


def test_role_equals_the_deployed_file() -> None:
    """The role fits its schema, and the file is generated from it."""
    for item in rbac.role():
        valid(item)
    file = (ROOT / "deploy" / "kubernetes" / "role.yaml").read_text()
    assert file == rbac.document()
    assert list(yaml.safe_load_all(file)) == rbac.role()


def test_every_setting_reaches_the_pods() -> None:
    """The pod options contain the values of the settings."""
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
    spec = valid(manifests.pod(SPEC, pod_options(settings, OWNER)))["spec"]
    (container,) = spec["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("image:1", "Always")
    assert container["resources"]["limits"]["ephemeral-storage"] == "512Mi"
    assert container["resources"]["limits"]["cpu"] == "2"
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (1001, 2002)
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert (spec["serviceAccountName"], spec["runtimeClassName"]) == ("sandboxes", "gvisor")
