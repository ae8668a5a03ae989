"""The chart: every object is one that a cluster takes, and finds what it is for."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import yaml

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
    asked,
    called,
    helm,
    merged,
    of_kind,
    pods,
    rendered,
)
from tests.integration.deploy.custom import fits
from tests.integration.deploy.matrix import KEDA, MATRIX

VERSIONS = ("1.29", "1.37")
"""The oldest cluster that the chart takes, and the newest whose schemas there are."""
CUSTOM = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject"}


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
            schemas.validate(one, version)


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


@pytest.mark.parametrize("values", [{}, {"setup": {"migrate": False}}, {"setup": {"provision": False}}])
def test_a_job_finds_its_account_whenever_it_runs(values: Json) -> None:
    """Both are hooks, and what went well is taken away: so the account is made before, at each of the same events."""
    objects = rendered(values)
    jobs = of_kind(objects, "Job")
    assert jobs
    for job in jobs:
        account = job["spec"]["template"]["spec"]["serviceAccountName"]
        (made,) = [one for one in of_kind(objects, "ServiceAccount") if one["metadata"]["name"] == account]
        notes, of_account = job["metadata"]["annotations"], made["metadata"]["annotations"]
        assert set(notes["helm.sh/hook"].split(",")) <= set(of_account["helm.sh/hook"].split(","))
        assert int(of_account["helm.sh/hook-weight"]) < int(notes["helm.sh/hook-weight"])


def test_the_second_kind_of_migrations_comes_after_new_code() -> None:
    """With the same rights, when the new services have been told; and neither kind where it is not wanted."""
    before, after = (called(rendered(), "Job", name) for name in ("migrate", "migrate-after"))
    notes = after["metadata"]["annotations"]
    assert set(notes["helm.sh/hook"].split(",")) == {"post-install", "post-upgrade"}
    assert "before-hook-creation" in notes["helm.sh/hook-delete-policy"]
    told = [job["spec"]["template"]["spec"]["containers"][0] for job in (before, after)]
    assert [one["args"][:2] for one in told] == [["migrate", "before"], ["migrate", "after"]]
    assert int(told[1]["args"][3]) < after["spec"]["activeDeadlineSeconds"]
    assert told[0]["env"] == told[1]["env"]
    jobs = of_kind(rendered({"setup": {"provision": False, "migrate": False}}), "Job")
    assert not [job for job in jobs if "migrate" in job["metadata"]["name"]]


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


def test_what_is_scraped_says_which_herd_and_service_it_is_of() -> None:
    """By `job` and `service`, which every alert and dashboard asks for; and the alerts' links lead where one says."""
    for kind, field in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        told = {"enabled": True, "kind": kind, "runbooks": "https://git.example.org/herd/docs/runbooks"}
        objects = rendered({"monitoring": told})
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


def test_nothing_is_left_unsaid_in_what_is_made() -> None:
    """No template leaves a hole in its text."""
    for values in ({}, {"autoscaling": KEDA, "monitoring": {"enabled": True}}):
        assert not re.search(r"<no value>|<nil>|%!", asked(values).stdout)
