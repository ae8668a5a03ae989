"""The chart: nobody is given more than is needed, by the cluster, by a Secret, or by the standard of pods."""

import pytest

from sandherd.settings import environment_names
from spawner.runtimes.kubernetes import rights
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
from tests.integration.deploy.matrix import MATRIX, MODEL


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
        "migrate-after": {"the-database"},
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
