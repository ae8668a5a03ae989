"""Requirements of a platform for the chart: its own labels, quotas, digests, names, and a complete removal."""

import json
from typing import Any

import pytest
import yaml

from spawner.runtimes.kubernetes import network
from tests.doubles.kubernetes.cluster import Cluster
from tests.integration.deploy.charts import (
    CHART,
    GIVEN,
    NAMESPACE,
    PODS,
    RELEASE,
    SERVICES,
    Json,
    called,
    helm,
    merged,
    of_kind,
    pods,
    rendered,
    variables,
)
from tests.integration.deploy.matrix import KEDA

QUOTA = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}


def test_every_container_can_have_the_limits_that_a_quota_wants() -> None:
    """Containers of jobs and of the test have limits, too: else such a quota refuses their pods."""
    services = {name: {"resources": QUOTA} for name in SERVICES}
    objects = rendered({"services": services, "setup": {"resources": QUOTA}, "test": {"resources": QUOTA}})
    for _, pod in pods(objects):
        assert [container["resources"] for container in pod["spec"]["containers"]] == [QUOTA]


def test_an_image_is_pinned_by_its_own_digest() -> None:
    """The other images are pulled by their tag."""
    digest = "sha256:" + "a" * 64
    objects = rendered({"image": {"digests": {"cli": digest, "monitor": digest}, "tag": "next"}})
    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in pods(objects)}
    pinned = {name for name, image in images.items() if image.endswith(f"@{digest}")}
    assert pinned == {"monitor", "provision", "test"}
    assert {image.rpartition(":")[2] for name, image in images.items() if name not in pinned} == {"next"}


@pytest.mark.parametrize(
    ("ports", "servers"),
    [([53], []), ([5353], ["openshift-dns"]), ([53], ["169.254.20.10", "kube-system/k8s-app=kube-dns", "fd00::a"])],
)
def test_services_and_sandboxes_have_the_same_dns(ports: list[int], servers: list[str]) -> None:
    """The chart opens DNS for services, and the spawner, by its settings, for sandboxes."""
    objects = rendered({"networkPolicy": {"dns": {"ports": ports, "servers": servers}}})
    (rule,) = called(objects, "NetworkPolicy", "names")["spec"]["egress"]
    by_code = network.policy("h", "nats://10.1.2.3", [], dns=network.DnsServers(servers, ports))["spec"]["egress"][0]
    assert rule == by_code
    environment = variables(called(objects, "Deployment", "spawner")["spec"]["template"]["spec"]["containers"][0])
    assert environment["SANDHERD_KUBERNETES_DNS_PORTS"] == ",".join(map(str, ports))
    assert environment.get("SANDHERD_KUBERNETES_DNS", "") == ",".join(servers)


def test_a_service_can_be_placed_and_annotated_by_itself() -> None:
    """Its values replace those for all; other services do not change."""
    own: Json = {
        "nodeSelector": {"pool": "own"},
        "tolerations": [],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "low",
        "annotations": {"reloader": "on"},
        "serviceAccountAnnotations": {"role": "reader"},
    }
    common = {"nodeSelector": {"pool": "all"}, "tolerations": [{"operator": "Exists"}], "priorityClassName": "high"}
    objects = rendered({"services": {"monitor": own}, "pods": common})
    monitor, relay = (called(objects, "Deployment", name) for name in ("monitor", "message-relay"))
    placed = monitor["spec"]["template"]["spec"]
    assert (placed["nodeSelector"], placed["priorityClassName"]) == ({"pool": "own"}, "low")
    assert placed["affinity"] == {"nodeAffinity": {}}
    assert "tolerations" not in placed
    others = relay["spec"]["template"]["spec"]
    assert {key: others[key] for key in common} == common
    assert monitor["metadata"]["annotations"] == {"reloader": "on"}
    assert called(objects, "ServiceAccount", "monitor")["metadata"]["annotations"] == {"role": "reader"}
    assert "annotations" not in called(objects, "ServiceAccount", "message-relay")["metadata"]


def test_the_namespace_of_sandboxes_is_as_a_platform_wants_it() -> None:
    """The namespace has labels, a version of the standard, a quota, and limits for each pod."""
    limits = [{"type": "Container", "max": {"memory": "8Gi"}}]
    values = {
        "namespaceLabels": {"team": "a"},
        "podSecurityVersion": "v1.36",
        "quota": {"pods": 5},
        "limitRange": limits,
    }
    objects = rendered({"sandboxes": values})
    labels = of_kind(objects, "Namespace")[0]["metadata"]["labels"]
    assert labels["team"] == "a"
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert labels["pod-security.kubernetes.io/enforce-version"] == "v1.36"
    assert of_kind(objects, "LimitRange")[0]["spec"]["limits"] == limits
    assert of_kind(objects, "ResourceQuota")[0]["spec"]["hard"] == {"pods": 5}


@pytest.mark.parametrize(
    ("sandboxes", "name"),
    [
        ({}, "sandherd-sandboxes"),
        ({"createNamespace": False, "namespace": "shared"}, f"{PODS}-sandboxes"),
        ({"namespace": NAMESPACE}, f"{PODS}-sandboxes"),
    ],
)
def test_only_in_a_namespace_of_its_own_a_release_has_fixed_names(sandboxes: Json, name: str) -> None:
    """In a shared namespace names differ, so that several releases can be there; else another release can take over."""
    objects = rendered({"sandboxes": {**sandboxes, "quota": {"pods": 5}, "limitRange": [{"type": "Pod"}]}})
    confining = [one for one in of_kind(objects, "ResourceQuota", "LimitRange", "NetworkPolicy") if is_retained(one)]
    assert [one["metadata"]["name"] for one in confining] == [name] * 3


def is_retained(one: Json) -> bool:
    return "helm.sh/resource-policy" in one["metadata"].get("annotations", {})


def test_connections_to_the_broker_have_their_authority_and_certificate() -> None:
    """Services and the job that creates streams have them; sandboxes have others, which only the spawner sees."""
    tls = {"secret": "services", "ca": "ca.pem", "cert": "tls.crt", "key": "tls.key"}
    objects = rendered({"nats": {"url": "tls://nats.nats.svc:4222", "tls": tls, "sandboxTls": {"secret": "boxes"}}})
    seen = {name: (variables(pod["spec"]["containers"][0]), mounted(pod)) for name, pod in pods(objects)}
    for name in (*SERVICES, "provision"):
        environment, secrets = seen[name]
        assert environment["NATS_CA"] == f"{secrets['services']}/ca.pem"
        assert environment["NATS_CERT"] == f"{secrets['services']}/tls.crt"
        assert environment["NATS_KEY"] == f"{secrets['services']}/tls.key"
        assert ("boxes" in secrets) == (name == "spawner")
    environment, secrets = seen["spawner"]
    assert environment["SANDHERD_SANDBOX_NATS_CA"] == f"{secrets['boxes']}/ca.crt"
    assert "SANDHERD_SANDBOX_NATS_CERT" not in environment
    assert "services" not in seen["migrate"][1].keys() | seen["test"][1].keys()


def mounted(pod: Json) -> dict[str, str]:
    """The paths of a pod's Secrets, by their names."""
    places = {one["name"]: one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one}
    return {secret: places[name] for name, secret in secrets.items()}


def test_further_requested_objects_are_made() -> None:
    """The objects may have templates in their texts."""
    more = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}
    made = of_kind(rendered({"extraObjects": [more]}), "ConfigMap")
    assert f"{RELEASE}-more" in {one["metadata"]["name"] for one in made}


def test_agents_that_still_run_stay_confined_when_the_release_is_removed() -> None:
    """Everything in their namespace stays, except the spawner's permissions; and nothing else stays."""
    objects = rendered({"sandboxes": {"quota": {"pods": 5}, "limitRange": [{"type": "Pod"}]}})
    stored = {one["kind"] for one in objects if "helm.sh/resource-policy" in one["metadata"].get("annotations", {})}
    assert stored == {"Namespace", "NetworkPolicy", "ResourceQuota", "LimitRange"}
    among = {one["kind"] for one in objects if one["metadata"].get("namespace") == f"{NAMESPACE}-sandboxes"}
    assert among - stored == {"Role", "RoleBinding"}


def test_hook_objects_are_deleted_after_success() -> None:
    """Helm removes no hooks with a release: successful ones are already deleted, a failed job after a day."""
    for one in rendered():
        notes = one["metadata"].get("annotations", {})
        if "helm.sh/hook" in notes and one["kind"] != "ServiceAccount":
            assert "hook-succeeded" in notes["helm.sh/hook-delete-policy"].split(",")
        if one["kind"] == "Job":
            assert one["spec"]["ttlSecondsAfterFinished"] == 86_400


def test_retained_objects_have_names_independent_of_the_release() -> None:
    """The next release takes them over instead of adding a second quota."""
    names = [stored(release) for release in (RELEASE, "other")]
    assert names[0] == names[1]
    assert len(names[0]) == 3


def stored(release: str) -> set[tuple[str, str]]:
    given = json.dumps(merged(GIVEN, {"sandboxes": {"quota": {"pods": 5}}}))
    done = helm("template", release, str(CHART), "--namespace", NAMESPACE, "--values", "-", stdin=given)
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return {
        (one["kind"], one["metadata"]["name"])
        for one in found
        if "helm.sh/resource-policy" in one["metadata"].get("annotations", {})
    }


SCALING: dict[str, Json] = {
    "spawner": {"autoscaling": KEDA},
    "gateway": {"gateway": {"autoscaling": {"enabled": True, "min": 2, "max": 6, "cpu": 70}}},
}


@pytest.mark.parametrize("service", SCALING)
@pytest.mark.parametrize(("live", "expected"), [(None, 2), (1, 2), (6, 6)])
def test_scaling_never_lowers_the_replicas_that_there_are(service: str, live: int | None, expected: int) -> None:
    """The real helm reads the number from a cluster, and begins with `min` if there is none."""
    with Cluster() as cluster:
        cluster.api.open_to_all = True
        if live is not None:
            kind = {"apiVersion": "apps/v1", "kind": "Deployment"}
            body: Json = kind | {"metadata": {"name": f"{PODS}-{service}"}, "spec": {"replicas": live}}
            cluster.now(lambda: cluster.store.create("deployments", NAMESPACE, body))
        given = json.dumps(merged(GIVEN, SCALING[service]))
        where = ["--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig), "--values", "-"]
        done = helm("template", RELEASE, str(CHART), "--dry-run=server", *where, stdin=given)
    assert done.returncode == 0, done.stderr
    assert replicas(done.stdout)[f"{PODS}-{service}"] == expected


def replicas(text: str) -> dict[str, Any]:
    objects = [one for one in yaml.safe_load_all(text) if one]
    return {one["metadata"]["name"]: one["spec"]["replicas"] for one in of_kind(objects, "Deployment")}
