"""The chart, rendered by the real helm as a user would install it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.patience import PATIENCE

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "sandherd"
RELEASE, NAMESPACE = "herd", "agents"
PODS = "herd-sandherd"
"""The prefix of the names of its objects."""
GIVEN: Json = {
    "image": {"registry": "registry.example.org/team"},
    "nats": {"url": "nats://nats.nats.svc:4222"},
    "database": {"secret": {"name": "the-database"}},
    "sandboxes": {"image": "registry.example.org/team/agents:7"},
}
"""The required values."""
SERVICES = ("spawner", "event-ingest", "monitor", "message-relay", "gateway")
PARTS = (*SERVICES, "provision", "migrate", "migrate-after", "test")


def helm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run helm."""
    beside = Path(sys.executable).parent / "helm"
    command = str(beside) if beside.exists() else shutil.which("helm") or "helm"
    return subprocess.run(
        [command, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Merge a file of values over another as helm does: null removes a value."""
    both = {key: value for key, value in under.items() if over.get(key, value) is not None}
    for key, value in over.items():
        if value is None and key in under:
            continue
        below = both.get(key)
        both[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return both


def template_result(values: Mapping[str, Any], chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    """The chart rendered by helm with the required values and these."""
    return _template_result(json.dumps(merged(GIVEN, values)), chart)


@cache
def _template_result(given: str, chart: Path) -> subprocess.CompletedProcess[str]:
    return helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, "--values", "-", stdin=given)


def rendered(values: Mapping[str, Any] | None = None, chart: Path = CHART) -> list[Json]:
    """All rendered objects. They are shared: do not change them."""
    return _rendered(json.dumps(merged(GIVEN, values or {})), chart)


@cache
def _rendered(given: str, chart: Path) -> list[Json]:
    done = _template_result(given, chart)
    assert done.returncode == 0, done.stderr
    # Twenty times as fast as the pure Python loader, which would take most of the time here.
    return [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]


def refusal(values: Mapping[str, Any]) -> str:
    """The error of helm for invalid values."""
    done = template_result(values)
    assert done.returncode != 0, "they were taken"
    return done.stderr


def of_kind(objects: list[Json], *kinds: str) -> list[Json]:
    return [one for one in objects if one["kind"] in kinds]


def called(objects: list[Json], kind: str, name: str) -> Json:
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == f"{PODS}-{name}"]
    return found


def pods(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    """The template of each pod of these objects, by its component and the rest of a job's name."""
    for one in of_kind(objects, "Deployment", "Job", "Pod"):
        template = one if one["kind"] == "Pod" else one["spec"]["template"]
        name, part = one["metadata"]["name"], template["metadata"]["labels"]["app.kubernetes.io/component"]
        yield name[name.rindex(part) :], template


def variables(container: Json) -> Json:
    """The variables of a container: texts as they are, and the names of Secrets."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env", [])}
