"""The chart: every object is one that a cluster takes, and gives nobody more than is needed."""

import itertools
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # no types
import pytest
import yaml

from sandherd.settings import environment_names, load
from spawner.runtimes.kubernetes import rights
from tests.integration.deploy.charts import (
    CHART,
    GIVEN,
    NAMESPACE,
    PARTS,
    PODS,
    RELEASE,
    SERVICES,
    Json,
    asked,
    called,
    helm,
    merged,
    of_kind,
    pods,
    rendered,
    variables,
)
from tests.integration.deploy.custom import fits

VERSIONS = ("1.29", "1.37")
"""The oldest cluster that the chart takes, and the newest whose schemas there are."""
KEDA = {"enabled": True, "monitor": "nats-headless.nats:8222", "account": "A" + "B" * 55}
MODEL = {"secretEnv": {"ANTHROPIC_API_KEY": {"secret": "models", "key": "anthropic"}}}
CHOICES: dict[str, list[Json]] = {
    "runtime": [{}, {"settings": {"runtime": "remote"}}, {"sandboxes": {"namespace": NAMESPACE}}],
    "monitoring": [{}, {"monitoring": {"enabled": True}}, {"monitoring": {"enabled": True, "kind": "ServiceMonitor"}}],
    "scaling": [{}, {"autoscaling": KEDA}],
    "network": [
        {},
        {"networkPolicy": {"enabled": False}},
        {
            "networkPolicy": {
                "database": {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
                "spawnerEgress": [{"ports": [{"protocol": "TCP", "port": 443}]}],
                "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
            },
            "telemetry": {"otlpEndpoint": "http://collector.monitoring:4318"},
        },
    ],
    "setup": [{}, {"setup": {"provision": False, "migrate": False}}, {"nats": {"replicas": 1}}],
    "pods": [
        {},
        {
            "image": {"pullSecrets": ["one", "two"], "repository": "", "tag": "next"},
            "pods": {
                "user": None,
                "labels": {"team": "agents"},
                "annotations": {"a.b/c": "d"},
                "nodeSelector": {"kubernetes.io/arch": "amd64"},
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "priorityClassName": "high",
                "env": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}],
                "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
                "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            },
            "services": {"spawner": MODEL},
            "sandboxes": {"quota": {"pods": 50, "requests.memory": "100Gi"}},
        },
    ],
}
"""Every choice of a kind meets every choice of each other kind in one of the lines below."""
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject"}


def lines() -> list[Json]:
    """Values such that any two choices stand together somewhere: all pairs, without all combinations."""
    sizes = [range(len(choices)) for choices in CHOICES.values()]
    missing = {
        ((a, i), (b, j))
        for (a, first), (b, second) in itertools.combinations(enumerate(sizes), 2)
        for i, j in itertools.product(first, second)
    }
    found = []
    while missing:
        line = max(itertools.product(*sizes), key=lambda line: len(missing & pairs(line)))
        missing -= pairs(line)
        values: Json = {}
        for choices, index in zip(CHOICES.values(), line, strict=True):
            values = merged(values, choices[index])
        found.append(values)
    return found


def pairs(line: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(line), 2))


MATRIX = [pytest.param(values, id=str(number)) for number, values in enumerate(lines())]


@pytest.mark.parametrize("values", MATRIX)
def test_a_cluster_takes_every_object(values: Json) -> None:
    """With every field known, whatever is chosen; and no two of them have the same name."""
    objects = rendered(values)
    for one in objects:
        taken(json.dumps(one))
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, _, name in names)


@cache
def taken(text: str) -> None:
    """Most objects are the same whatever is chosen, and the validator reads all schemas for each."""
    one = json.loads(text)
    if one["kind"] in CUSTOM:
        fits(one)
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("values", MATRIX)
def test_every_pod_is_restricted(values: Json) -> None:
    """As Kubernetes' own standard of that name has it, and further: nothing of the image can be written to."""
    for _, pod in pods(rendered(values)):
        whole = pod["spec"]["securityContext"]
        assert whole["runAsNonRoot"] is True
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        assert whole.get("runAsUser", 1) > 0
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod["spec"].keys()
        assert all({"emptyDir", "secret", "configMap"} & volume.keys() for volume in pod["spec"]["volumes"])
        for container in pod["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"]["memory"]
            assert not any("hostPort" in port for port in container.get("ports", []))


@pytest.mark.parametrize("values", MATRIX)
def test_the_spawner_alone_has_a_token(values: Json) -> None:
    """And only where sandboxes are pods: whoever takes over another service has no way to the cluster."""
    objects = rendered(values)
    made = values.get("settings", {}).get("runtime") != "remote"
    tokens = {name: pod["spec"]["automountServiceAccountToken"] for name, pod in pods(objects)}
    assert {name for name, token in tokens.items() if token} == ({"spawner"} if made else set())
    assert all(one["automountServiceAccountToken"] is False for one in of_kind(objects, "ServiceAccount"))
    own = {name: pod["spec"]["serviceAccountName"] for name, pod in pods(objects)}
    assert {own[name] for name in SERVICES} == {f"{PODS}-{name}" for name in SERVICES}


@pytest.mark.parametrize("values", MATRIX)
def test_the_spawner_alone_may_make_pods_and_in_one_namespace(values: Json) -> None:
    """By the rights that the code names; nobody else has any, and none are for the whole cluster."""
    objects = rendered(values)
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    bindings = of_kind(objects, "RoleBinding")
    if values.get("settings", {}).get("runtime") == "remote":
        assert bindings == []
        return
    namespace = values.get("sandboxes", {}).get("namespace", f"{NAMESPACE}-sandboxes")
    (binding,), (role,) = bindings, of_kind(objects, "Role")
    assert role["rules"] == rights.RULES
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == namespace
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": f"{PODS}-spawner", "namespace": NAMESPACE}]
    told = variables(called(objects, "Deployment", "spawner")["spec"]["template"]["spec"]["containers"][0])
    assert told["SANDHERD_KUBERNETES_NAMESPACE"] == namespace


def test_each_part_sees_its_own_secrets_only() -> None:
    """A credential of another part, or the database, is in no other pod; keys that sign are with the spawner alone."""
    seen = {name: set(secrets(pod)) for name, pod in pods(rendered({"services": {"spawner": MODEL}}))}
    assert seen == {
        "spawner": {"sandherd-spawner", "sandherd-spawner-keys", "models"},
        "event-ingest": {"sandherd-event-ingest", "the-database"},
        "monitor": {"sandherd-monitor"},
        "message-relay": {"sandherd-message-relay"},
        "provision": {"sandherd-provisioner"},
        "migrate": {"the-database"},
        "test": set(),
    }
    assert seen.keys() == set(PARTS)


def secrets(pod: Json) -> list[str]:
    mounted = [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    told = [value for container in pod["spec"]["containers"] for value in variables(container).values()]
    return mounted + [one["secretKeyRef"]["name"] for one in told if isinstance(one, dict)]


@pytest.mark.parametrize("values", MATRIX)
def test_no_secret_is_made_or_written_down(values: Json) -> None:
    """Secrets are somebody else's to bring; settings that are secret stand in no ConfigMap and in no variable."""
    objects = rendered(values)
    assert of_kind(objects, "Secret") == []
    hidden = {name: variable.name for name, variable in environment_names().items() if variable.secret}
    assert "database_url" in hidden
    for one in of_kind(objects, "ConfigMap"):
        assert not any(name in text for text in one["data"].values() for name in hidden)
    for _, pod in pods(objects):
        for container in pod["spec"]["containers"]:
            plain = {name for name, value in variables(container).items() if isinstance(value, str)}
            assert not plain & set(hidden.values())


@pytest.mark.parametrize("values", MATRIX)
def test_every_secret_that_is_named_can_be_read_by_the_pod(values: Json) -> None:
    """Its files are the group's to read, and the group is the pod's; nobody else may."""
    for _, pod in pods(rendered(values)):
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440
        mounted = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize("values", MATRIX)
def test_whatever_points_at_pods_finds_them(values: Json) -> None:
    """Budgets, Services, spreading and scaling name a service that is there, and no other pods."""
    objects = rendered(values)
    templates = dict(pods(objects))
    for one in of_kind(objects, "PodDisruptionBudget", "Service", "Deployment"):
        selector = one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        hit = {name for name, pod in templates.items() if selector.items() <= pod["metadata"]["labels"].items()}
        assert hit == {one["metadata"]["labels"]["app.kubernetes.io/component"]}
    for name in SERVICES:
        spread = templates[name]["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        labels = templates[name]["metadata"]["labels"]
        assert all(one["labelSelector"]["matchLabels"].items() <= labels.items() for one in spread)


def test_a_node_can_always_be_emptied() -> None:
    """A budget lets one replica go, also where there is but one, and also one that is not well."""
    objects = rendered({"services": {"monitor": {"replicas": 1}}})
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in budgets} == set(SERVICES)
    for one in budgets:
        assert one["spec"]["maxUnavailable"] == 1
        assert one["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_keda_and_the_chart_do_not_set_replicas_both() -> None:
    """Else each upgrade would take back what KEDA has done."""
    objects = rendered({"autoscaling": KEDA})
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in of_kind(objects, "ScaledObject")}
    assert scaled == {f"{PODS}-event-ingest", f"{PODS}-spawner"}
    fixed = {one["metadata"]["name"] for one in of_kind(objects, "Deployment") if "replicas" in one["spec"]}
    assert fixed == {one["metadata"]["name"] for one in of_kind(objects, "Deployment")} - scaled


def test_what_is_set_up_comes_before_new_code() -> None:
    """Streams and tables are made before an install and before an upgrade, and an old job is not in the way."""
    for name in ("provision", "migrate"):
        job = called(rendered(), "Job", name)
        notes = job["metadata"]["annotations"]
        assert set(notes["helm.sh/hook"].split(",")) == {"pre-install", "pre-upgrade"}
        assert "before-hook-creation" in notes["helm.sh/hook-delete-policy"]
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
        account = job["spec"]["template"]["spec"]["serviceAccountName"]
        (made,) = [one for one in of_kind(rendered(), "ServiceAccount") if one["metadata"]["name"] == account]
        weights = [int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) for one in (made, job)]
        assert weights[0] < weights[1]


def test_a_pod_can_be_waited_for_while_its_node_fetches_the_image() -> None:
    """The settings that the chart brings along agree with each other, and are settings."""
    text = called(rendered(), "ConfigMap", "settings")["data"]["sandherd.yaml"]
    settings = load(yaml.safe_load(text), {}).settings
    assert settings.spawn_timeout > settings.kubernetes_pending_timeout
    assert settings.runtime == "kubernetes"


def test_new_settings_start_new_pods() -> None:
    """A changed setting is a changed pod; else it would hold for whichever pod is started next."""

    def marks(values: Json) -> set[str]:
        found = of_kind(rendered(values), "Deployment")
        return {one["spec"]["template"]["metadata"]["annotations"]["sandherd.dev/settings"] for one in found}

    assert marks({"settings": {"max_sandboxes": 20}}) != marks({})
    assert marks({}) == marks({})


def test_sandboxes_are_in_a_namespace_that_outlives_the_release() -> None:
    """It holds pods to the restricted standard; agents at work in it are not ended by `helm uninstall`."""
    (namespace,) = of_kind(rendered(), "Namespace")
    assert namespace["metadata"]["name"] == f"{NAMESPACE}-sandboxes"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert namespace["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(rendered({"sandboxes": {"createNamespace": False}}), "Namespace") == []


def test_helm_finds_nothing_to_say(tmp_path: Path) -> None:
    """`helm lint --strict`, with the least values and with everything on."""
    for number, values in enumerate(({}, {"monitoring": {"enabled": True}, "autoscaling": KEDA})):
        file = tmp_path / f"{number}.yaml"
        file.write_text(json.dumps(merged(GIVEN, values)))
        done = helm("lint", "--strict", str(CHART), "--values", str(file))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout


def test_the_notes_say_how_to_go_on(tmp_path: Path) -> None:
    """Their commands name this release and its namespace. Helm shows them after an install; here they are an object."""
    chart = tmp_path / "sandherd"
    shutil.copytree(CHART, chart)
    include = '{{ include (print $.Template.BasePath "/NOTES.txt") . | quote }}'
    text = f"apiVersion: v1\nkind: Notes\nmetadata: {{name: notes}}\ntext: {include}\n"
    (chart / "templates" / "notes.yaml").write_text(text)
    for values in ({}, {"settings": {"runtime": "remote"}, "networkPolicy": {"enabled": False}}):
        (made,) = of_kind(rendered(values, chart), "Notes")
        notes = made["text"]
        assert f"helm test {RELEASE} -n {NAMESPACE}" in notes
        assert (f"kubectl get pods -n {NAMESPACE}-sandboxes" in notes) == (values == {})
        assert ("networkPolicy.enabled is false" in notes) == (values != {})
        assert not re.search(r"<no value>|<nil>|%!", notes)


def test_alerts_and_dashboards_come_as_they_are(tmp_path: Path) -> None:
    """Every one that the chart has, to the letter: what looks like a template in them is none."""
    chart = tmp_path / "sandherd"
    shutil.copytree(CHART, chart)
    rule = {"alert": "A", "expr": "up == 0", "annotations": {"summary": "{{ $labels.pod }} is {{ $value }}"}}
    groups = [{"name": "g", "rules": [rule]}]
    (chart / "files/rules.yaml").write_text(json.dumps({"groups": groups}))
    (chart / "files/dashboards").mkdir(exist_ok=True)
    for name in ("one", "two"):
        (chart / f"files/dashboards/{name}.json").write_text(f'{{"title": "{{{{ {name} }}}}"}}\n')
    objects = rendered({"monitoring": {"enabled": True}}, chart)
    (made,) = of_kind(objects, "PrometheusRule")
    fits(made)
    assert made["spec"]["groups"] == groups
    found = {key: text for one in of_kind(objects, "ConfigMap") for key, text in one["data"].items() if ".json" in key}
    assert found["two.json"] == '{"title": "{{ two }}"}\n'
    assert found.keys() == {path.name for path in (chart / "files/dashboards").glob("*.json")}
    assert of_kind(rendered({"monitoring": {"enabled": True, "rules": False}}), "PrometheusRule") == []


def test_nothing_is_left_unsaid_in_what_is_made() -> None:
    """No template leaves a hole in its text."""
    for values in ({}, {"autoscaling": KEDA, "monitoring": {"enabled": True}}):
        assert not re.search(r"<no value>|<nil>|%!", asked(values).stdout)
