"""The chart: a cluster accepts every object, and each object selects what it is for."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import yaml

from sandherd.contracts.streams import CONSUMERS
from sandherd.settings import load
from tests.doubles.kubernetes import schemas
from tests.engines.prometheus import rules
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
    template_result,
)
from tests.integration.deploy.custom import fits
from tests.integration.deploy.matrix import KEDA, MATRIX

VERSIONS = ("1.29", "1.37")
"""The oldest supported cluster, and the newest with known schemas."""
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject"}


@pytest.mark.parametrize("values", MATRIX)
def test_every_object_fits_the_clusters_schema(values: Json) -> None:
    """Every field is known for any values, and no two objects have the same name."""
    objects = rendered(values)
    for one in objects:
        taken(json.dumps(one))
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, _, name in names)


@cache
def taken(text: str) -> None:
    """The different objects: most are the same for any values, and the validator reads all schemas for each."""
    one = json.loads(text)
    if one["kind"] in CUSTOM:
        fits(one)
    else:
        for version in VERSIONS:
            schemas.validate(one, version)


@pytest.mark.parametrize("values", MATRIX)
def test_selectors_match_existing_pods(values: Json) -> None:
    """Budgets, Services, spreading and scaling name an existing service, and no other pods."""
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


def test_disruption_budgets_never_block_a_drain() -> None:
    """A budget permits the eviction of one replica, even of the only one or of one that is not ready."""
    objects = rendered({"services": {"monitor": {"replicas": 1}}})
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in budgets} == set(SERVICES)
    for one in budgets:
        assert one["spec"]["maxUnavailable"] == 1
        assert one["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_provisioning_precedes_new_code() -> None:
    """Streams and tables are created before an install and an upgrade, without interference of an old job."""
    for name in ("provision", "migrate"):
        job = called(rendered(), "Job", name)
        notes = job["metadata"]["annotations"]
        assert set(notes["helm.sh/hook"].split(",")) == {"pre-install", "pre-upgrade"}
        assert "before-hook-creation" in notes["helm.sh/hook-delete-policy"]
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("values", [{}, {"setup": {"migrate": False}}, {"setup": {"provision": False}}])
def test_job_has_its_service_account_at_each_hook(values: Json) -> None:
    """Both are hooks, and successful ones are deleted: at each event the account is created before the job."""
    objects = rendered(values)
    jobs = of_kind(objects, "Job")
    assert jobs
    for job in jobs:
        account = job["spec"]["template"]["spec"]["serviceAccountName"]
        (made,) = [one for one in of_kind(objects, "ServiceAccount") if one["metadata"]["name"] == account]
        notes, of_account = job["metadata"]["annotations"], made["metadata"]["annotations"]
        assert set(notes["helm.sh/hook"].split(",")) <= set(of_account["helm.sh/hook"].split(","))
        assert int(of_account["helm.sh/hook-weight"]) < int(notes["helm.sh/hook-weight"])


def test_later_migrations_follow_new_code() -> None:
    """The job has the same permissions, and follows the new services; either kind of migrations can be disabled."""
    before, after = (called(rendered(), "Job", name) for name in ("migrate", "migrate-after"))
    notes = after["metadata"]["annotations"]
    assert set(notes["helm.sh/hook"].split(",")) == {"post-install", "post-upgrade"}
    assert "before-hook-creation" in notes["helm.sh/hook-delete-policy"]
    containers = [job["spec"]["template"]["spec"]["containers"][0] for job in (before, after)]
    assert [one["args"][:2] for one in containers] == [["migrate", "before"], ["migrate", "after"]]
    assert int(containers[1]["args"][3]) < after["spec"]["activeDeadlineSeconds"]
    assert containers[0]["env"] == containers[1]["env"]
    jobs = of_kind(rendered({"setup": {"provision": False, "migrate": False}}), "Job")
    assert not [job for job in jobs if "migrate" in job["metadata"]["name"]]


def test_a_pod_can_be_waited_for_while_its_node_fetches_the_image() -> None:
    """The settings that the chart adds agree with each other, and are valid."""
    text = called(rendered(), "ConfigMap", "settings")["data"]["sandherd.yaml"]
    settings = load(yaml.safe_load(text), {}).settings
    assert settings.spawn_timeout > settings.kubernetes_pending_timeout
    assert settings.runtime == "kubernetes"


def test_new_settings_start_new_pods() -> None:
    """A changed setting changes the pod; else it would apply only to the pods that start later."""

    def marks(values: Json) -> set[str]:
        found = of_kind(rendered(values), "Deployment")
        return {one["spec"]["template"]["metadata"]["annotations"]["sandherd.dev/settings"] for one in found}

    assert marks({"settings": {"max_sandboxes": 20}}) != marks({})
    assert marks({}) == marks({})


def test_sandboxes_are_in_a_namespace_that_outlives_the_release() -> None:
    """The namespace enforces the restricted standard, and `helm uninstall` does not end the agents in it."""
    (namespace,) = of_kind(rendered(), "Namespace")
    assert namespace["metadata"]["name"] == f"{NAMESPACE}-sandboxes"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert namespace["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(rendered({"sandboxes": {"createNamespace": False}}), "Namespace") == []


def test_helm_lint_passes(tmp_path: Path) -> None:
    """`helm lint --strict` passes with the required values and with everything enabled."""
    for number, values in enumerate(({}, {"monitoring": {"enabled": True}, "autoscaling": KEDA})):
        file = tmp_path / f"{number}.yaml"
        file.write_text(json.dumps(merged(GIVEN, values)))
        done = helm("lint", "--strict", str(CHART), "--values", str(file))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout


def test_notes_name_the_next_commands(tmp_path: Path) -> None:
    """The commands name this release and its namespace. Helm shows them after an install; here they are an object."""
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


def test_alerts_and_dashboards_are_included_verbatim(tmp_path: Path) -> None:
    """Texts in them that resemble templates stay as they are."""
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


def test_scraped_metrics_have_herd_and_service() -> None:
    """Every alert and dashboard selects by `job` and `service`; the alerts' links use the configured address."""
    for kind, field in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        containers = {"enabled": True, "kind": kind, "runbooks": "https://git.example.org/herd/docs/runbooks"}
        objects = rendered({"monitoring": containers})
        (monitor,) = of_kind(objects, kind)
        ((herd, service),) = (endpoint["relabelings"] for endpoint in monitor["spec"][field])
        assert herd == {"targetLabel": "job", "replacement": f"{NAMESPACE}/{monitor['metadata']['name']}"}
        label = "__meta_kubernetes_pod_label_app_kubernetes_io_component"
        assert service == {"targetLabel": "service", "sourceLabels": [label]}
        (made,) = of_kind(objects, "PrometheusRule")
        alerts = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
        links = [rule["annotations"]["runbook_url"] for rule in alerts]
        assert all(re.fullmatch(r"https://git\.example\.org/herd/docs/runbooks/\w+\.md", link) for link in links)
        assert [rule["expr"] for rule in alerts] == [rule["expr"] for rule in rules()]


def test_keda_scales_deployments_whose_replicas_share_their_messages() -> None:
    """Each target is a Deployment of the release, and each trigger a durable consumer of its service."""
    scaled = of_kind(rendered({"autoscaling": KEDA}), "ScaledObject")
    targets = {one["spec"]["scaleTargetRef"]["name"]: one["spec"]["triggers"] for one in scaled}
    assert targets.keys() == {f"{PODS}-event-ingest", f"{PODS}-spawner"}
    consumers = {name: {trigger["metadata"]["consumer"] for trigger in triggers} for name, triggers in targets.items()}
    assert all(consumers.values())
    services = {consumer.name: consumer.service for consumer in CONSUMERS}
    assert all(name == f"{PODS}-{services[one]}" for name, found in consumers.items() for one in found)


def test_rendered_texts_have_no_empty_values() -> None:
    """No template leaves an empty value in its text."""
    for values in ({}, {"autoscaling": KEDA, "monitoring": {"enabled": True}}):
        assert not re.search(r"<no value>|<nil>|%!", template_result(values).stdout)
