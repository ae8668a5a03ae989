"""Git repositories in the chart: the place of mirrors, the credentials, and the connections to forges."""

from typing import Any

import pytest
import yaml

from sandherd.settings import load
from sandherd.settings.repositories import RepositorySettings
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.kubernetes import manifests, network
from tests.integration.deploy.charts import (
    GIVEN,
    NAMESPACE,
    SERVICES,
    Json,
    called,
    merged,
    pods,
    refusal,
    rendered,
    variables,
)
from tests.integration.deploy.matrix import FORGES
from tests.integration.deploy.test_helm_network import (
    DNS,
    GIT_PROXY,
    HTTP,
    OUTSIDE,
    STRANGER,
    Place,
    all_that_reach,
    ours,
    reaches,
)

HTTPS = 443


def spawner(values: Json) -> Json:
    spec: Json = called(rendered(values), "Deployment", "spawner")["spec"]["template"]["spec"]
    return spec


def settings_of(values: Json) -> Any:
    """The settings that the spawner reads from the textual variables of its container."""
    text = called(rendered(values), "ConfigMap", "settings")["data"]["sandherd.yaml"]
    (container,) = spawner(values)["containers"]
    plain = {name: value for name, value in variables(container).items() if isinstance(value, str)}
    return load(
        yaml.safe_load(text),
        {name: plain[name] for name in plain if any(part in name for part in ("GIT", "FORGE", "SIGNING"))},
    ).settings


def test_only_the_spawner_reaches_forges_and_only_if_enabled() -> None:
    """By default there is no rule; with configured addresses or ports no others are reachable."""
    assert all_that_reach(rendered(), OUTSIDE, HTTPS) == {"spawner"}, "the API server, without its addresses"
    api = {"networkPolicy": {"apiServer": {"to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]}}}
    assert all_that_reach(rendered(api), OUTSIDE, HTTPS) == set()
    enabled = merged(api, {"repositories": {"enabled": True}})
    assert all_that_reach(rendered(enabled), OUTSIDE, HTTPS) == {"spawner"}
    assert all_that_reach(rendered(enabled), OUTSIDE, 22) == set()
    own = {"ports": [8443], "to": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]}
    narrow = rendered(merged(enabled, {"repositories": {"forges": own}}))
    assert all_that_reach(narrow, Place(address="10.3.0.7"), 8443) == {"spawner"}
    assert all_that_reach(narrow, OUTSIDE, 8443) == all_that_reach(narrow, OUTSIDE, HTTPS) == set()
    assert reaches(narrow, ours("spawner"), DNS, 53, "UDP")


def test_tasks_name_forges_only_if_the_spawner_reaches_them() -> None:
    """Otherwise tasks are refused with the setting's name, instead of waiting for a dropped connection."""
    assert settings_of({}).repository_hosts == []
    assert "github.com" in settings_of({"repositories": {"enabled": True}}).repository_hosts
    hosts = {"settings": {"repository_hosts": ["git.example.org"]}, "repositories": {"enabled": True}}
    assert settings_of(hosts).repository_hosts == ["git.example.org"]


def test_credentials_of_forges_are_the_spawners_alone() -> None:
    """The token is a variable from its Secret, the others are files; without Secrets there are none."""
    found = {name: pod["spec"] for name, pod in pods(rendered(FORGES))}
    environments = {name: variables(spec["containers"][0]) for name, spec in found.items()}
    assert environments["spawner"]["GITHUB_TOKEN"] == {"secretKeyRef": {"name": "github", "key": "token"}}
    assert environments["spawner"]["SANDHERD_GIT_CREDENTIALS"] == "/run/sandherd-git/hosts"
    assert str(settings_of(FORGES).git_credentials) == "/run/sandherd-git/hosts"
    (volume,) = [one for one in found["spawner"]["volumes"] if one["name"] == "git-credentials"]
    assert volume["secret"] == {"secretName": "forges", "defaultMode": 0o440}
    (container,) = found["spawner"]["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in found["spawner"]["volumes"] if "secret" in one}
    settings = settings_of(FORGES)
    for name, path in (
        ("forge-tokens", settings.forge_tokens),
        ("github-app", settings.github_app_key.parent),
        ("signing", settings.signing_key.parent),
    ):
        assert (mounts[name]["mountPath"], mounts[name]["readOnly"], secrets[name]) == (str(path), True, name)
    assert (settings.github_app_key.name, settings.github_app_id) == ("app.pem", "12345")
    of_forges = {"GITHUB_TOKEN", "SANDHERD_GIT_CREDENTIALS", "SANDHERD_FORGE_TOKENS", "SANDHERD_GITHUB_APP_KEY"}
    of_forges.add("SANDHERD_SIGNING_KEY")
    for name in {*found} - {"spawner"}:
        assert not of_forges & environments[name].keys()
        assert not any(part in one["name"] for part in ("git", "forge", "signing") for one in found[name]["volumes"])
    bare = variables(spawner({})["containers"][0])
    assert not of_forges & bare.keys()


def test_sandboxes_reach_the_git_proxy_and_nothing_else_of_the_spawner() -> None:
    """The Service, the pod's port, and the policies of both sides agree; no other pod may connect."""
    places = {"projects": {"team": {"namespace": "agents-of-team"}}}
    values: Json = {"repositories": {"enabled": True, "gitProxy": {"enabled": True}}, "sandboxes": places}
    objects = rendered(values)
    url = variables(spawner(values)["containers"][0])["SANDHERD_GIT_PROXY_URL"]
    assert url == f"http://herd-sandherd-git-proxy.{NAMESPACE}.svc:{GIT_PROXY}"
    service = called(objects, "Service", "git-proxy")["spec"]
    assert service["selector"].items() <= ours("spawner").labels.items()
    assert service["ports"] == [{"name": "git-proxy", "port": GIT_PROXY, "targetPort": "git-proxy"}]
    (container,) = spawner(values)["containers"]
    assert {"name": "git-proxy", "containerPort": GIT_PROXY} in container["ports"]
    settings = settings_of(values)
    assert (settings.git_proxy_url, settings.git_proxy_listen) == (url, f"0.0.0.0:{GIT_PROXY}")
    for where in (f"{NAMESPACE}-sandboxes", "agents-of-team"):
        box = Place(where, {**manifests.MANAGED, HERD: "herd"})
        assert not reaches(objects, box, ours("spawner"), GIT_PROXY), "before the spawner permits it"
        opened = {**network.policy("herd", f"{GIVEN['nats']['url']},{url}", []), "kind": "NetworkPolicy"}
        both = [*objects, {**opened, "metadata": {**opened["metadata"], "namespace": where}}]
        assert reaches(both, box, ours("spawner"), GIT_PROXY)
        assert not reaches(both, box, ours("spawner"), HTTP)
        assert not any(reaches(both, box, ours(name), GIT_PROXY) for name in SERVICES if name != "spawner")
        assert not reaches(both, Place(where, {"app": "other"}), ours("spawner"), GIT_PROXY)
    assert not any(reaches(objects, one, ours("spawner"), GIT_PROXY) for one in (STRANGER, ours("gateway")))


def test_git_proxy_is_off_by_default_and_refused_where_it_could_not_work() -> None:
    """Without it there is no port; from outside of the cluster it needs TLS and a named server."""
    assert settings_of({}).git_proxy_url is RepositorySettings().git_proxy_url is None
    assert [one["name"] for one in spawner({})["containers"][0]["ports"]] == ["http"]
    proxy: Json = {"repositories": {"gitProxy": {"enabled": True}}}
    enabled: Json = merged(proxy, {"repositories": {"enabled": True}})
    front: Json = merged(enabled, {"repositories": {"gitProxy": {"url": "https://git.example.org"}}})
    named: Json = merged(
        front, {"repositories": {"gitProxy": {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}}}
    )
    assert "set repositories.enabled" in refusal(proxy)
    assert "set url" in refusal(merged(enabled, {"settings": {"runtime": "remote"}}))
    assert "set from" in refusal(front)
    assert "gitProxy" in refusal(merged(front, {"repositories": {"gitProxy": {"url": "http://git.example.org"}}}))
    assert reaches(rendered(named), Place(NAMESPACE, {"a": "b"}), ours("spawner"), GIT_PROXY)
    assert not reaches(rendered(named), STRANGER, ours("spawner"), GIT_PROXY)


@pytest.mark.parametrize(
    ("mirrors", "volume"),
    [
        ({}, {"emptyDir": {"sizeLimit": "10Gi"}}),
        ({"size": "40Gi"}, {"emptyDir": {"sizeLimit": "40Gi"}}),
        ({"claim": "mirrors"}, {"persistentVolumeClaim": {"claimName": "mirrors"}}),
        (
            {"storageClass": "fast", "size": "1Ti"},
            {
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "storageClassName": "fast",
                            "resources": {"requests": {"storage": "1Ti"}},
                        }
                    }
                }
            },
        ),
    ],
)
def test_mirrors_have_a_volume_of_their_own(mirrors: Json, volume: Json) -> None:
    """The volume is mounted only where the spawner stores mirrors, so that they do not fill its home."""
    values: Json = {"repositories": {"enabled": True, "mirrors": mirrors}}
    spec = spawner(values)
    (found,) = [one for one in spec["volumes"] if one["name"] == "mirrors"]
    assert found == {"name": "mirrors", **volume}
    (container,) = spec["containers"]
    home = variables(container)["SANDHERD_HOME"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert mounts["mirrors"] == {"name": "mirrors", "mountPath": f"{home}/repositories"}
    others = [pod for name, pod in pods(rendered(values)) if name in SERVICES and name != "spawner"]
    assert not any(one["name"] == "mirrors" for pod in others for one in pod["spec"]["volumes"])
