"""Projects whose sandboxes have their own namespace: its objects, and the spawner's setting."""

import json

from sandherd.settings.loader import load
from tests.integration.deploy.charts import (
    GIVEN,
    NAMESPACE,
    PODS,
    Json,
    called,
    of_kind,
    refusal,
    rendered,
    variables,
)

PROJECTS: Json = {
    "team": {"namespace": "agents-of-team", "quota": {"pods": 9}},
    "guests": {"namespace": "guests", "createNamespace": False, "limitRange": [{"type": "Pod", "max": {"cpu": 1}}]},
}
COMMON: Json = {"quota": {"pods": 50, "requests.memory": "9Gi"}, "namespaceLabels": {"a": "b"}}
USUAL = f"{NAMESPACE}-sandboxes"


def objects() -> list[Json]:
    return rendered({"sandboxes": COMMON | {"projects": PROJECTS}})


def places(kind: str) -> dict[str, Json]:
    return {one["metadata"]["namespace"]: one for one in of_kind(objects(), kind) if "namespace" in one["metadata"]}


def test_each_namespace_has_what_confines_its_sandboxes() -> None:
    """Each has the spawner's permissions, a policy that closes it, and a quota; a project's value replaces all's."""
    for kind in ("Role", "RoleBinding", "NetworkPolicy", "ResourceQuota"):
        assert places(kind).keys() == {USUAL, "agents-of-team", "guests"}
    quotas = {name: one["spec"]["hard"] for name, one in places("ResourceQuota").items()}
    assert quotas == {USUAL: COMMON["quota"], "agents-of-team": {"pods": 9}, "guests": COMMON["quota"]}
    assert places("LimitRange").keys() == {"guests"}
    assert all(one["spec"]["podSelector"] == {} for one in places("NetworkPolicy").values())
    assert all(one["subjects"][0]["namespace"] == NAMESPACE for one in places("RoleBinding").values())


def test_only_a_namespace_that_exists_is_not_created() -> None:
    """Created namespaces enforce the standard, with the labels of all; only in them names are fixed."""
    created = {one["metadata"]["name"]: one["metadata"]["labels"] for one in of_kind(objects(), "Namespace")}
    assert created.keys() == {USUAL, "agents-of-team"}
    for labels in created.values():
        assert (labels["pod-security.kubernetes.io/enforce"], labels["a"]) == ("restricted", "b")
    names = {name: one["metadata"]["name"] for name, one in places("ResourceQuota").items()}
    assert names == {USUAL: "sandherd-sandboxes", "agents-of-team": "sandherd-sandboxes", "guests": f"{PODS}-sandboxes"}


def test_the_spawner_gets_the_namespaces_as_a_valid_setting() -> None:
    """The setting is valid, and absent without such a project."""
    environment = variables(called(objects(), "Deployment", "spawner")["spec"]["template"]["spec"]["containers"][0])
    text = environment["SANDHERD_KUBERNETES_NAMESPACES"]
    assert json.loads(text) == {"team": "agents-of-team", "guests": "guests"}
    assert load({}, {"SANDHERD_KUBERNETES_NAMESPACES": text}).settings.kubernetes_namespaces == json.loads(text)
    usual = variables(called(rendered(), "Deployment", "spawner")["spec"]["template"]["spec"]["containers"][0])
    assert "SANDHERD_KUBERNETES_NAMESPACES" not in usual


def test_projects_that_can_not_work_are_refused() -> None:
    """Two in one namespace, the namespace of all others, an invalid name, and an unresolvable broker are refused."""
    two = {"a": {"namespace": "one"}, "b": {"namespace": "one"}}
    assert "sandboxes.projects.b.namespace: one is the namespace of project a" in refuse(two)
    assert "is the namespace of all other projects" in refuse({"a": {"namespace": USUAL}})
    assert "sandboxes.projects" in refuse({"A": {"namespace": "one"}})
    assert "namespace is required" in refuse({"a": {}})
    nats = {"nats": {**GIVEN["nats"], "url": "nats://broker:4222"}}
    error = refusal(nats | {"sandboxes": {"namespace": NAMESPACE, "projects": {"a": {"namespace": "one"}}}})
    assert "sandboxes are in namespace one, where broker does not resolve" in error


def refuse(projects: Json) -> str:
    return refusal({"sandboxes": {"projects": projects}})
