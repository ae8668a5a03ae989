"""docker-compose.yml, read by docker-compose itself, without an engine; tests/e2e/docker runs it."""

import json
from typing import Any

import pytest
import yaml

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.identity.capacity import Capacity
from sandherd.settings import load
from tests.engines.compose import Compose

LIMITED_LOG = ("json-file", "max-file", "max-size")
TELEMETRY = {"collector", "prometheus", "grafana"}


@pytest.mark.parametrize("profiles", ["", "telemetry", "telemetry,cli"])
def test_compose_configuration_is_complete(profiles: str) -> None:
    """With every profile all references resolve, and only the socket's group has to be set.

    The log files of no container grow without limit, whatever a sandbox makes the broker or a service log.
    """
    found = Compose(DOCKER_GID="0", COMPOSE_PROFILES=profiles)("config")
    assert (found.returncode, found.stderr) == (0, "")
    services = yaml.safe_load(found.stdout)["services"]
    assert set(SERVICES) <= set(services)
    assert {(part["logging"]["driver"], *part["logging"]["options"]) for part in services.values()} == {LIMITED_LOG}


def test_missing_docker_gid_is_reported_with_its_command() -> None:
    """One line names the variable and the command, before anything is started."""
    found = Compose()("config")
    assert found.returncode != 0
    assert "DOCKER_GID" in found.stderr
    assert "stat -c %g" in found.stderr


def test_telemetry_runs_only_with_its_profile() -> None:
    """The profile adds collector, Prometheus and Grafana, and nothing else."""
    services = yaml.safe_load(Compose(DOCKER_GID="0").checked_output("config"))["services"]
    assert {name for name, part in services.items() if part.get("profiles") == ["telemetry"]} == TELEMETRY
    assert {name for name, part in services.items() if part.get("profiles") == ["cli"]} == {"cli"}


def test_settings_reach_their_services() -> None:
    """Version, image and network of sandboxes, ports and the collector are passed on."""
    given: Any = {
        "DOCKER_GID": "7", "SANDHERD_VERSION": "9.9.9", "SANDBOX_IMAGE": "team/agents:1", "NATS_PORT": "14222",
        "SANDHERD_DOCKER_NETWORK": "boxes", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    }  # fmt: skip
    found = yaml.safe_load(Compose(**given).checked_output("config"))
    spawner = found["services"]["spawner"]
    assert spawner["image"] == "sandherd/spawner:9.9.9"
    assert spawner["group_add"] == ["7"]
    assert spawner["environment"]["SANDBOX_IMAGE"] == "team/agents:1"
    assert spawner["environment"]["SANDHERD_DOCKER_NETWORK"] == found["networks"]["sandboxes"]["name"] == "boxes"
    assert "127.0.0.1:14222:4222" in json.dumps(found["services"]["nats"]["ports"])
    assert found["services"]["monitor"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


def test_git_proxy_is_on_the_network_of_sandboxes_only_with_its_file() -> None:
    """Settings permit its address; the spawner's metrics are served on the network of the services alone."""
    files = ("--file", "docker-compose.yml", "--file", "deploy/compose/git-proxy.yml")
    before, spawner = (
        yaml.safe_load(Compose(DOCKER_GID="0").checked_output(*words, "config"))["services"]["spawner"]
        for words in ((), files)
    )
    assert "SANDHERD_GIT_PROXY_URL" not in before["environment"]
    assert set(before["networks"]) == {"herd"}
    assert spawner["networks"] == {"herd": {"aliases": ["spawner-of-herd"]}, "sandboxes": {"aliases": ["git-proxy"]}}
    variables = {name: value for name, value in spawner["environment"].items() if "GIT_PROXY" in name}
    settings = load({}, variables).settings
    assert (settings.git_proxy_url, settings.git_proxy_listen) == ("http://git-proxy:9402", "0.0.0.0:9402")
    assert spawner["environment"]["SANDHERD_HTTP_HOST"] in spawner["networks"]["herd"]["aliases"]
    assert spawner["environment"].items() > before["environment"].items()


def test_tokens_of_forges_are_a_file_of_the_spawner() -> None:
    """The file is read-only, in no other container, and in no variable, which `docker inspect` would show."""
    files = ("SANDHERD_GIT_CREDENTIALS", "SANDHERD_FORGE_TOKENS", "SANDHERD_GITHUB_APP_KEY", "SANDHERD_SIGNING_KEY")
    named: Any = {name: f"/etc/{name}" for name in files}
    none: Any = {}
    for given in (none, named):
        compose = Compose(DOCKER_GID="0", GITHUB_TOKEN="ghp_visible", **given)
        services = yaml.safe_load(compose.checked_output("config"))["services"]
        spawner = services["spawner"]
        mounts = {name: [mount_text(one) for one in part.get("volumes", ())] for name, part in services.items()}
        for file in files:
            place = spawner["environment"][file]
            assert f"{given.get(file, '/dev/null')}:{place}:ro" in mounts["spawner"]
            assert {name for name, found in mounts.items() if any(place in one for one in found)} == {"spawner"}
        assert "ghp_visible" not in json.dumps(services)


def test_mirrors_outlive_the_container() -> None:
    """Mirrors are in the volume of the spawner's home; hosts and sizes are passed on."""
    given: Any = {"SANDHERD_REPOSITORY_HOSTS": "git.example.org", "SANDHERD_MAX_REPOSITORY_MB": "99"}
    given |= {"SANDHERD_PULL_REQUESTS": "draft", "SANDHERD_MERGE_POLICY": "queue"}
    spawner = yaml.safe_load(Compose(DOCKER_GID="0", **given).checked_output("config"))["services"]["spawner"]
    assert "spawner-home:/var/lib/sandherd:rw" in [mount_text(one) for one in spawner["volumes"]]
    assert {name: str(spawner["environment"][name]) for name in given} == given
    default = yaml.safe_load(Compose(DOCKER_GID="0").checked_output("config"))["services"]["spawner"]["environment"]
    names = [*given, "SANDHERD_GIT_CREDENTIALS"]
    settings, own = load({}, {name: str(default[name]) for name in names}).settings, load({}, {}).settings
    assert (settings.repository_hosts, settings.max_repository_mb) == (own.repository_hosts, own.max_repository_mb)
    assert (settings.pull_requests, settings.merge_policy) == (own.pull_requests, own.merge_policy)


def test_built_images_are_not_named_as_a_users() -> None:
    """`docker compose build` names each build itself: SANDBOX_IMAGE's name would replace the user's image."""
    found = yaml.safe_load(Compose(DOCKER_GID="7", SANDBOX_IMAGE="team/agents:1").checked_output("config"))["services"]
    built = {part["image"] for part in found.values() if "build" in part}
    assert all(image.startswith("sandherd/") for image in built), built


def test_servers_have_a_raised_file_limit() -> None:
    """The file limits of broker, database and services are higher than what the broker accepts."""
    services = yaml.safe_load(Compose(DOCKER_GID="0").checked_output("config"))["services"]
    for name in ("nats", "postgres", *SERVICES):
        assert int(services[name]["ulimits"]["nofile"]) * 0.6 > Capacity().connections, name


def test_broker_guard_can_write_only_its_verdict() -> None:
    """The guard has no engine's socket, other process namespace, key or other credential; its files are read-only."""
    services = yaml.safe_load(Compose(DOCKER_GID="0").checked_output("config"))["services"]
    guard, broker = services["store-guard"], services["nats"]
    assert not {"pid", "privileged", "cap_add", "network_mode", "group_add"} & guard.keys()
    mounts = sorted(mount_text(one) for one in guard["volumes"])
    state = "store-state:/run/store-guard"
    assert mounts == ["nats-data:/data:ro", "store-guard-credentials:/run/sandherd:ro", f"{state}:rw"]
    assert f"{state}:ro" in [mount_text(one) for one in broker["volumes"]]


def mount_text(mount: Any) -> str:
    """The text of a mount: newer versions of Compose print a mapping."""
    if isinstance(mount, str):
        return mount
    return f"{mount['source']}:{mount['target']}:{'ro' if mount.get('read_only') else 'rw'}"
