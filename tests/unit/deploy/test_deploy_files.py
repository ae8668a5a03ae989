"""Deployment files: hadolint passes, versions are this one's, and each image is named once."""

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

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.identity.deployment import CREDENTIALS

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "deploy" / "images"
SERVICE = IMAGES / "service"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PARTS: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = re.compile(r"^sandherd/[a-z-]+:\$\{SANDHERD_VERSION:-(?P<version>[^}]+)\}$")
ONCE = {"identity", "provisioner", "migration", "sandbox", "cli"}


@pytest.mark.parametrize("image", ["service", "sandbox"])
def test_dockerfiles_pass_hadolint(image: str) -> None:
    """No rule of hadolint is broken, and none is switched off."""
    hadolint, dockerfile = Path(sys.executable).with_name("hadolint"), IMAGES / image / "Dockerfile"
    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in dockerfile.read_text()


def test_foreign_images_are_named_once_with_a_full_tag() -> None:
    """An upgrade is one change in one line; and no tag is `latest`, which is another image tomorrow."""
    found = Counter(part["image"] for part in PARTS.values() if "sandherd/" not in part["image"])
    found.update(re.findall(r"^ARG \w+_IMAGE=(\S+)$", (SERVICE / "Dockerfile").read_text(), flags=re.MULTILINE))
    assert set(found.values()) == {1}
    assert all(re.fullmatch(r"[a-z/-]+:v?\d+\.\d+[\w.-]*", image) for image in found), found
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (SERVICE / "Dockerfile").read_text(), flags=re.MULTILINE)
    names = {name for _, name in stages}
    assert {base for base, _ in stages} - names == {"${PYTHON_IMAGE}", "${SERVICE:-cli}"}
    assert {*SERVICES, "cli"} <= names, "the programs of each service"


def test_own_images_have_this_version_and_one_dockerfile() -> None:
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


def test_each_service_gets_only_its_own_credential() -> None:
    """Only the part that creates them has the keys of operator and accounts; the signing keys are the spawner's."""
    mounted = {name: {_source(volume) for volume in part.get("volumes", ())} for name, part in PARTS.items()}
    for service in SERVICES:
        assert {volume for volume in mounted[service] if volume.endswith("-credentials")} == {f"{service}-credentials"}
    assert {name for name, volumes in mounted.items() if "identity" in volumes} == {"identity"}
    assert {name for name, volumes in mounted.items() if "spawner-keys" in volumes} == {
        "identity", "provisioner", "spawner",
    }  # fmt: skip
    assert {name for name, part in PARTS.items() if "docker.sock" in json.dumps(part)} == {"spawner"}


def test_no_service_runs_as_root_or_writes_to_its_root() -> None:
    """Each is read-only, without capabilities or new privileges; one-shot parts are not restarted."""
    for name, part in PARTS.items():
        if name == "postgres":  # the official image begins as root, and gives that up by itself
            continue
        assert part["read_only"], name
        assert part["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in part["security_opt"], name
        assert part["restart"] == ("no" if name in ONCE else "unless-stopped"), name
    assert "USER 10001:10001" in (SERVICE / "Dockerfile").read_text()


def test_postgres_is_reachable_for_its_clients_only() -> None:
    """The database's network has no way out, and sandboxes are on one with nothing but the broker.

    Grafana has no credential for it but that of a role which reads, and that only where an operator sets one.
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


def test_every_mounted_file_exists() -> None:
    """Each folder has content: an engine would create an empty one in the place of a missing one."""
    mounted = {_source(volume) for part in PARTS.values() for volume in part.get("volumes", ())}
    files = {name for name in mounted if name.startswith("./")}
    assert {"./deploy/helm/sandherd/files/dashboards", "./deploy/prometheus/rules"} <= files
    for path in (ROOT / name for name in files):
        assert path.is_file() or any(inside.is_file() for inside in path.rglob("*")), path


def test_prometheus_scrapes_every_service_on_its_port() -> None:
    """A service that is not scraped has no panel and no alert."""
    config = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    requested = {
        group["labels"]["service"]: group["targets"] for group in config["scrape_configs"][0]["static_configs"]
    }
    assert requested == {str(service): [f"{service}:8000"] for service in SERVICES}
    assert "SANDHERD_HTTP_PORT=8000" in (SERVICE / "Dockerfile").read_text()


def test_image_reads_credentials_where_they_are_created() -> None:
    """The file's name in the image is that of `sandherd identity init`."""
    assert f"SANDHERD_CREDENTIALS=/run/sandherd/{CREDENTIALS}" in (SERVICE / "Dockerfile").read_text()


@pytest.mark.parametrize("image", json.loads((SERVICE / "contents.json").read_text()))
def test_image_contents_are_locked_with_hashes(image: str) -> None:
    """Every picked package has one version and a hash, exactly as in `requirements.lock`."""
    lock, contents = ROOT / "requirements.lock", SERVICE / "contents.json"
    picked = subprocess.run(
        [sys.executable, SERVICE / "pick.py", image, contents, lock], capture_output=True, text=True, check=True
    ).stdout
    assert picked
    assert "--hash=sha256:" in picked
    assert set(picked.splitlines()) <= set(lock.read_text().splitlines())


def _source(volume: str) -> str:
    return re.split(r":(?=/)", volume, maxsplit=1)[0]
