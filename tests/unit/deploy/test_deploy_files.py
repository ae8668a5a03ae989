"""What deploys is of one mind: hadolint finds nothing, versions are this one's, and each image is named once."""

import json
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandherd.bus.identity.deployment import CREDENTIALS
from sandherd.bus.permissions import SERVICES

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "deploy" / "images"
SERVICE = IMAGES / "service"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PARTS: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = re.compile(r"^sandherd/[a-z-]+:\$\{SANDHERD_VERSION:-(?P<version>[^}]+)\}$")
ONCE = {"identity", "provisioner", "migration", "sandbox", "cli"}


@pytest.mark.parametrize("image", ["service", "sandbox"])
def test_hadolint_finds_nothing_in_a_dockerfile(image: str) -> None:
    """None of its rules is broken, and none is switched off."""
    hadolint, dockerfile = Path(sys.executable).with_name("hadolint"), IMAGES / image / "Dockerfile"
    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in dockerfile.read_text()


def test_every_image_of_others_is_named_once_with_a_whole_tag() -> None:
    """An upgrade is one change in one line; and no tag is `latest`, which is another image tomorrow."""
    found = Counter(part["image"] for part in PARTS.values() if "sandherd/" not in part["image"])
    found.update(re.findall(r"^ARG \w+_IMAGE=(\S+)$", (SERVICE / "Dockerfile").read_text(), flags=re.MULTILINE))
    assert set(found.values()) == {1}
    assert all(re.fullmatch(r"[a-z/-]+:v?\d+\.\d+[\w.-]*", image) for image in found), found
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (SERVICE / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert {base for base, _ in stages} - {name for _, name in stages} == {"${PYTHON_IMAGE}"}


def test_ours_are_of_this_version_and_built_by_the_one_dockerfile() -> None:
    """Every service has an image of its own name, with the version of the packages as its default."""
    own = {name: OURS.fullmatch(part["image"]) for name, part in PARTS.items() if name != "sandbox"}
    versions = {match["version"] for match in own.values() if match}
    assert versions == {version("sandherd")}
    own_box = f"sandherd/sandbox:{version('sandherd')}"
    assert PARTS["sandbox"]["image"] == own_box
    assert PARTS["spawner"]["environment"]["SANDBOX_IMAGE"] == f"${{SANDBOX_IMAGE:-{own_box}}}"
    for service in SERVICES:
        assert PARTS[service]["image"].startswith(f"sandherd/{service}:")
        assert PARTS[service]["build"]["args"]["SERVICE"] == service


def test_each_service_is_given_its_own_credential_and_no_other() -> None:
    """Nobody but who makes them has the keys of operator and accounts; the signing keys are the spawner's."""
    mounted = {name: {_source(volume) for volume in part.get("volumes", ())} for name, part in PARTS.items()}
    for service in SERVICES:
        assert {volume for volume in mounted[service] if volume.endswith("-credentials")} == {f"{service}-credentials"}
    assert {name for name, volumes in mounted.items() if "identity" in volumes} == {"identity"}
    assert {name for name, volumes in mounted.items() if "spawner-keys" in volumes} == {
        "identity", "provisioner", "spawner",
    }  # fmt: skip
    assert {name for name, part in PARTS.items() if "docker.sock" in json.dumps(part)} == {"spawner"}


def test_nothing_of_ours_runs_as_root_or_writes_to_its_own_root() -> None:
    """Read-only, without capabilities, without a way to more of them; what runs once is not started again."""
    for name, part in PARTS.items():
        if name == "postgres":  # the official image begins as root, and gives that up by itself
            continue
        assert part["read_only"], name
        assert part["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in part["security_opt"], name
        assert part["restart"] == ("no" if name in ONCE else "unless-stopped"), name
    assert "USER 10001:10001" in (SERVICE / "Dockerfile").read_text()


def test_only_who_writes_the_history_and_grafana_reach_postgres() -> None:
    """Its network has no way out, and sandboxes are on one where there is nothing but the broker.

    Grafana has no credential for it but that of a role which reads, and that only where somebody gives it one.
    """
    networks = {name: set(part.get("networks", ())) for name, part in PARTS.items()}
    assert COMPOSE["networks"]["history"] == {"internal": True}
    assert {name for name, found in networks.items() if "history" in found} == {
        "postgres",
        "migration",
        "event-ingest",
        "grafana",
    }
    assert not [volume for volume in PARTS["grafana"]["volumes"] if "password" in volume or "credentials" in volume]
    assert {name for name, found in networks.items() if "sandboxes" in found} == {"nats"}
    published = [port for part in PARTS.values() for port in part.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_file_that_is_mounted_is_there() -> None:
    """And something in every folder: an engine would make an empty one in the place of what is not."""
    mounted = {_source(volume) for part in PARTS.values() for volume in part.get("volumes", ())}
    files = {name for name in mounted if name.startswith("./")}
    assert {"./deploy/grafana/dashboards", "./deploy/prometheus/rules"} <= files
    for path in (ROOT / name for name in files):
        assert path.is_file() or any(inside.is_file() for inside in path.rglob("*")), path


def test_prometheus_asks_every_service_on_the_port_of_its_image() -> None:
    """A service that nobody asks has no panel and no alert."""
    config = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    asked = {group["labels"]["service"]: group["targets"] for group in config["scrape_configs"][0]["static_configs"]}
    assert asked == {str(service): [f"{service}:8000"] for service in SERVICES}
    assert "SANDHERD_HTTP_PORT=8000" in (SERVICE / "Dockerfile").read_text()


def test_the_image_looks_for_credentials_where_they_are_made() -> None:
    """The file's name in the image is that of `sandherd identity init`."""
    assert f"SANDHERD_CREDENTIALS=/run/sandherd/{CREDENTIALS}" in (SERVICE / "Dockerfile").read_text()


@pytest.mark.parametrize("image", json.loads((SERVICE / "contents.json").read_text()))
def test_what_an_image_holds_is_out_of_the_lock_with_its_hashes(image: str) -> None:
    """Every package that is picked has one version at a time and a hash, word for word as in `requirements.lock`."""
    lock, contents = ROOT / "requirements.lock", SERVICE / "contents.json"
    picked = subprocess.run(
        [sys.executable, SERVICE / "pick.py", image, contents, lock], capture_output=True, text=True, check=True
    ).stdout
    assert picked
    assert "--hash=sha256:" in picked
    assert set(picked.splitlines()) <= set(lock.read_text().splitlines())


def _source(volume: str) -> str:
    return re.split(r":(?=/)", volume, maxsplit=1)[0]
