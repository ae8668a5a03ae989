"""The chart needs few values, and refuses invalid ones with their place and what is permitted."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from sandherd.settings import environment_names
from tests.integration.deploy.charts import (
    CHART,
    GIVEN,
    NAMESPACE,
    RELEASE,
    ROOT,
    SERVICES,
    Json,
    called,
    helm,
    refusal,
    rendered,
    template_result,
    variables,
)

WRONG: list[tuple[Json, str, str]] = [
    ({"image": {"registry": None}}, "image", "registry is required"),
    ({"nats": {"url": None}}, "nats", "url is required"),
    ({"database": {"secret": {"name": None}}}, "database.secret", "name is required"),
    ({"sandboxes": {"image": None}}, "sandboxes.image", "set their image"),
    ({"nats": {"url": "nats.nats:4222"}}, "nats.url", "(nats|tls|ws|wss)://"),
    ({"nats": {"url": "nats://me:secret@nats.nats:4222"}}, "nats.url", "(nats|tls|ws|wss)://"),
    ({"nats": {"replicas": 2}}, "nats.replicas", "1, 3"),
    ({"nats": {"url": "nats://nats:4222"}}, "nats.url", "nats://nats.agents.svc:4222"),
    ({"image": {"tag": "a b"}}, "image.tag", "pattern"),
    ({"image": {"pullPolicy": "always"}}, "image.pullPolicy", '"Always", "IfNotPresent", "Never"'),
    ({"settings": {"max_sandboxs": 3}}, "settings", "max_sandboxs is not allowed"),
    ({"settings": {"rules": {"lop": {"repeats": 3}}}}, "settings.rules", "lop is not allowed"),
    ({"settings": {"rules": {"dead": {"after": 0}}}}, "settings.rules.dead.after", "greater than 0"),
    ({"settings": {"max_sandboxes": 0}}, "settings.max_sandboxes", "greater than or equal to 1"),
    ({"settings": {"max_sandboxes": "many"}}, "settings.max_sandboxes", "Expected: integer, given: string"),
    ({"settings": {"runtime": "Kubernetes"}}, "settings.runtime", "Does not match pattern"),
    ({"settings": {"runtime": "process"}}, "settings.runtime", "set another runtime"),
    ({"settings": {"profiles": {"near": {"runtime": "process"}}}}, "settings.runtime", "set another runtime"),
    ({"settings": {"database_url": "postgresql://u:p@h/d"}}, "settings", "database_url is not allowed"),
    ({"settings": {"nats_url": "nats://elsewhere"}}, "settings", "nats_url is not allowed"),
    ({"settings": {"profiles": {"big": {"limits": {"memory_mb": 1}}}}}, "memory_mb", "greater than or equal to 64"),
    ({"settings": {"kubernetes_user": "0:0"}}, "settings.kubernetes_user", "pattern"),
    ({"services": {"monitor": {"replicas": 0}}}, "services.monitor.replicas", "greater than or equal to 1"),
    ({"services": {"watcher": {"replicas": 1}}}, "services", "watcher is not allowed"),
    ({"services": {"spawner": {"secretEnv": {"A": "value"}}}}, "services.spawner.secretEnv.A", "Expected: object"),
    ({"credentials": {"spawner": {"secret": "Has Space"}}}, "credentials.spawner.secret", "pattern"),
    ({"sandboxes": {"namespace": "Agents"}}, "sandboxes.namespace", "pattern"),
    ({"monitoring": {"kind": "Probe"}}, "monitoring.kind", '"PodMonitor", "ServiceMonitor"'),
    ({"autoscaling": {"enabled": True}}, "autoscaling", "set autoscaling.monitor and autoscaling.account"),
    ({"autoscaling": {"account": "HERD"}}, "autoscaling.account", "pattern"),
    ({"autoscaling": {"services": {"spawner": {"min": 0}}}}, "spawner.min", "greater than or equal to 1"),
    ({"autoscaling": {"services": {"spawner": {"min": 9}}}}, "autoscaling.services.spawner", "more than max (4)"),
    ({"autoscaling": {"services": {"monitor": {"min": 1, "max": 2, "lag": 1}}}}, "services", "monitor is not allowed"),
    ({"pods": {"labels": {"app.kubernetes.io/name": "x"}}}, "pods.labels", "app.kubernetes.io/name"),
    ({"pods": {"user": 0}}, "pods.user", "greater than or equal to 1"),
    ({"telemetry": {"otlpEndpoint": "collector:4318"}}, "telemetry.otlpEndpoint", "https?://"),
    ({"networkPolicy": {"database": {"port": 0}}}, "networkPolicy.database.port", "greater than or equal to 1"),
    ({"networkPolicy": {"metricsFrom": [{}]}}, "networkPolicy.metricsFrom.0", "at least 1"),
    ({"setup": {"timeout": "10m"}}, "setup.timeout", "Expected: integer"),
    ({"ingress": {}}, "(root)", "ingress is not allowed"),
    ({"nats": {"tls": {"secret": "a", "cert": "tls.crt"}}}, "nats.tls", "cert and key belong together"),
    ({"nats": {"tls": {"cert": "tls.crt", "key": "tls.key"}}}, "nats.tls", "set secret, too"),
    ({"nats": {"tls": {"secret": "a"}}}, "nats.tls", "use tls:// or wss://"),
    ({"nats": {"url": "tls://n.n", "sandboxUrl": "ws://n.n", "sandboxTls": {"secret": "a"}}}, "sandboxTls", "use tls"),
    ({"image": {"digests": {"spawner": "0.1.0@sha256:1"}}}, "image.digests.spawner", "pattern"),
    ({"image": {"digests": {"watcher": "sha256:" + "0" * 64}}}, "image.digests", "watcher is not allowed"),
    ({"networkPolicy": {"dns": {"ports": []}}}, "networkPolicy.dns.ports", "at least 1"),
    ({"networkPolicy": {"dns": {"servers": ["10.0.0.0/33"]}}}, "networkPolicy.dns.servers.0", "pattern"),
    ({"sandboxes": {"podSecurityVersion": "1.36"}}, "sandboxes.podSecurityVersion", "pattern"),
    (
        {"sandboxes": {"namespaceLabels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
        "namespaceLabels",
        "not",
    ),
    ({"extraObjects": [{"kind": "ConfigMap"}]}, "extraObjects.0", "apiVersion is required"),
    ({"settings": {"git_credentials": "/a"}}, "settings", "git_credentials is not allowed"),
    ({"settings": {"github_token": "a"}}, "settings", "github_token is not allowed"),
    ({"settings": {"repository_hosts": ["a.org"]}}, "settings.repository_hosts", "set repositories.enabled"),
    ({"repositories": {"githubToken": {"secret": "a"}}}, "repositories.githubToken", "set repositories.enabled"),
    ({"repositories": {"credentials": {"secret": "a"}}}, "repositories.credentials", "set repositories.enabled"),
    ({"repositories": {"forgeTokens": {"secret": "a"}}}, "repositories.forgeTokens", "set repositories.enabled"),
    ({"settings": {"github_app_id": "7"}}, "repositories.githubApp", "set both"),
    ({"settings": {"signing_committer": "A <a@b.example>"}}, "repositories.signing", "set both"),
    ({"settings": {"github_app_key": "/a"}}, "settings", "github_app_key is not allowed"),
    ({"repositories": {"githubToken": {"token": "ghp_abc"}}}, "repositories.githubToken", "token is not allowed"),
    ({"repositories": {"mirrors": {"size": "10G"}}}, "repositories.mirrors.size", "pattern"),
    ({"repositories": {"mirrors": {"claim": "a", "storageClass": "b"}}}, "repositories.mirrors", "set one of them"),
    ({"repositories": {"forges": {"ports": []}}}, "repositories.forges.ports", "at least 1"),
    ({"settings": {"kubernetes_dns_ports": [53]}}, "settings", "kubernetes_dns_ports is not allowed"),
]


@pytest.mark.parametrize(("values", "where", "what"), WRONG, ids=[json.dumps(values)[:60] for values, _, _ in WRONG])
def test_what_can_not_work_is_refused(values: Json, where: str, what: str) -> None:
    """An invalid value is refused before anything is created, with its place and what is permitted."""
    error = refusal(values)
    line = next((line for line in error.splitlines() if where in line), "")
    assert what in line, error


def test_a_handful_of_values_is_enough() -> None:
    """Four values are enough. Without them helm names all that are missing at once."""
    assert sum(1 for _ in leaves(GIVEN)) == 4
    done = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE)
    for missing in ("image: registry is required", "nats: url is required", "secret: name is required"):
        assert missing in done.stderr


def leaves(values: Any) -> Any:
    if not isinstance(values, dict):
        yield values
        return
    for one in values.values():
        yield from leaves(one)


def test_limit_range_of_the_page_is_valid_by_the_schema() -> None:
    """A limit range is a list, and the page's example can be copied into the values."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    validator = Draft202012Validator(schema["$defs"]["LimitRange"])
    (shown,) = re.findall(r"`limitRange` is a list.*?`(\[.*?\])`", (ROOT / "docs" / "helm.md").read_text(), re.DOTALL)
    assert validator.is_valid(yaml.safe_load(shown))
    assert not validator.is_valid({"max": {"memory": "8Gi"}})


def test_every_setting_can_be_given_or_is_the_chart_s() -> None:
    """Every setting has its own name in the values, except secrets, addresses and paths."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    settings = schema["$defs"]["Settings"]["properties"]
    facts = yaml.safe_load((CHART / "files" / "facts.yaml").read_text())
    secret = {name for name, variable in environment_names().items() if variable.secret}
    rest = environment_names().keys() - settings.keys() - facts["variables"].keys() - secret
    assert rest == {"http_port_file", "gateway_port_file", "toolchains", "kubernetes_config"}
    assert not settings.keys() & (secret | facts["variables"].keys())
    assert settings["max_sandboxes"]["description"] == "Maximum number of live sandboxes."


def test_every_service_of_the_code_is_in_the_chart() -> None:
    """A service that is added to the code must be in the chart."""
    assert tuple(yaml.safe_load((CHART / "files" / "facts.yaml").read_text())["services"]) == SERVICES
    assert yaml.safe_load((CHART / "values.yaml").read_text())["services"].keys() == set(SERVICES)


def test_a_large_number_is_written_out() -> None:
    """A user id of OpenShift is over a thousand million, which a template would write as 1.00065e+09."""
    lag = {"services": {"event-ingest": {"min": 1, "max": 2, "lag": 2_000_000}}}
    account = {"enabled": True, "monitor": "nats:8222", "account": "A" * 56}
    error = template_result(
        {"pods": {"user": 1_000_650_000}, "autoscaling": {**account, **lag}, "setup": {"timeout": 3_600_000}}
    )
    assert error.returncode == 0, error.stderr
    assert (
        re.findall(r"^ *(?:runAs|fsG)\w+: (?!1000650000$|true$|OnRootMismatch$).*$", error.stdout, re.MULTILINE) == []
    )
    assert 'lagThreshold: "2000000"' in error.stdout
    assert "activeDeadlineSeconds: 3600000\n" in error.stdout


def test_the_chart_is_of_this_version() -> None:
    """The chart uses the images that are built from the same code."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    (container,) = called(rendered(), "Deployment", "monitor")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.org/team/sandherd/monitor:{version}"


def test_a_release_is_called_as_one_likes() -> None:
    """A name that contains the chart's does not get it twice, and a long one is cut as a cluster requires."""
    given = json.dumps(GIVEN)
    for release, begin in (("sandherd", "sandherd-"), ("a" * 53, "a" * 31 + "-sandherd-")):
        done = helm("template", release, str(CHART), "--namespace", NAMESPACE, "--values", "-", stdin=given)
        names = [
            one["metadata"]["name"] for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "Deployment"
        ]
        assert sorted(names) == sorted(begin + service for service in SERVICES)


def test_variables_out_of_secrets_reach_the_service_that_asks() -> None:
    """Only that service gets them: a model's key is for the spawner, which passes it to sandboxes."""
    values = {"services": {"spawner": {"secretEnv": {"MODEL_KEY": {"secret": "models", "key": "anthropic"}}}}}
    objects = rendered(values)
    wrong_values = {
        name: variables(called(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"][0])
        for name in SERVICES
    }
    assert wrong_values["spawner"]["MODEL_KEY"] == {"secretKeyRef": {"name": "models", "key": "anthropic"}}
    assert [name for name in SERVICES if "MODEL_KEY" in wrong_values[name]] == ["spawner"]
