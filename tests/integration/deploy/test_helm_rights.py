"""Permissions in the chart: none is excessive in the cluster, in Secrets, or by the pod standard."""

from typing import Final

import pytest

from sandherd.settings import environment_names
from spawner.runtimes.kubernetes import rbac
from tests.integration.deploy.charts import (
    NAMESPACE,
    PARTS,
    PODS,
    SERVICES,
    Json,
    called,
    of_kind,
    pods,
    rendered,
    variables,
)
from tests.integration.deploy.matrix import FORGES, MATRIX, MODEL

FORGE_SECRETS: Final = ("github", "forges", "forge-tokens", "github-app", "signing")
VOLUMES = {"emptyDir", "secret", "configMap", "ephemeral", "persistentVolumeClaim"}


@pytest.mark.parametrize("values", MATRIX)
def test_every_pod_is_restricted(values: Json) -> None:
    """Every pod meets Kubernetes' restricted standard, and no file of the image is writable."""
    for _, pod in pods(rendered(values)):
        whole = pod["spec"]["securityContext"]
        assert whole["runAsNonRoot"] is True
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        assert whole.get("runAsUser", 1) > 0
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod["spec"].keys()
        assert all(VOLUMES & volume.keys() for volume in pod["spec"]["volumes"])
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
def test_only_the_spawner_has_a_token(values: Json) -> None:
    """The spawner has a token only if sandboxes are pods; no other service has access to the cluster."""
    objects = rendered(values)
    made = values.get("settings", {}).get("runtime") != "remote"
    tokens = {name: pod["spec"]["automountServiceAccountToken"] for name, pod in pods(objects)}
    assert {name for name, token in tokens.items() if token} == ({"spawner"} if made else set())
    assert all(one["automountServiceAccountToken"] is False for one in of_kind(objects, "ServiceAccount"))
    own = {name: pod["spec"]["serviceAccountName"] for name, pod in pods(objects)}
    assert {own[name] for name in SERVICES} == {f"{PODS}-{name}" for name in SERVICES}


@pytest.mark.parametrize("values", MATRIX)
def test_only_the_spawner_may_create_pods_in_the_namespaces_of_sandboxes(values: Json) -> None:
    """The permissions are those that the code names; no other part has any, and none is for the whole cluster."""
    objects = rendered(values)
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    bindings = of_kind(objects, "RoleBinding")
    if values.get("settings", {}).get("runtime") == "remote":
        assert bindings == []
        return
    namespace = values.get("sandboxes", {}).get("namespace", f"{NAMESPACE}-sandboxes")
    projects = values.get("sandboxes", {}).get("projects", {})
    named = {namespace, *(one["namespace"] for one in projects.values())}
    roles = {role["metadata"]["namespace"]: role for role in of_kind(objects, "Role")}
    assert roles.keys() == {one["metadata"]["namespace"] for one in bindings} == named
    for binding in bindings:
        role = roles[binding["metadata"]["namespace"]]
        assert role["rules"] == rbac.RULES
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": f"{PODS}-spawner", "namespace": NAMESPACE}]
    environment = variables(called(objects, "Deployment", "spawner")["spec"]["template"]["spec"]["containers"][0])
    assert environment["SANDHERD_KUBERNETES_NAMESPACE"] == namespace


def test_each_component_sees_only_its_own_secrets() -> None:
    """No pod has another part's credential or database access; only the spawner has signing keys."""
    seen = {name: set(secrets(pod)) for name, pod in pods(rendered({**FORGES, "services": {"spawner": MODEL}}))}
    assert seen == {
        "spawner": {"sandherd-spawner", "sandherd-spawner-keys", "models", *FORGE_SECRETS},
        "event-ingest": {"sandherd-event-ingest", "the-database"},
        "monitor": {"sandherd-monitor"},
        "message-relay": {"sandherd-message-relay"},
        "gateway": {"sandherd-gateway"},
        "provision": {"sandherd-provisioner"},
        "migrate": {"the-database"},
        "migrate-after": {"the-database"},
        "test": set(),
    }
    assert seen.keys() == set(PARTS)


def secrets(pod: Json) -> list[str]:
    mounted = [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    environment = [value for container in pod["spec"]["containers"] for value in variables(container).values()]
    return mounted + [one["secretKeyRef"]["name"] for one in environment if isinstance(one, dict)]


@pytest.mark.parametrize("values", MATRIX)
def test_chart_creates_and_contains_no_secret(values: Json) -> None:
    """The operator provides Secrets; no ConfigMap and no variable has a secret setting."""
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
def test_named_secrets_are_readable_by_the_pods_group_only(values: Json) -> None:
    """Only the group of the pod can read their files."""
    for _, pod in pods(rendered(values)):
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440
        mounted = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
