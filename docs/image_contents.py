"""The packages in each image, by name; versions and hashes are those of `requirements.lock`."""

from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ALL: Final = "sandherd[image]"
IMAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "spawner": (_ALL, "sandherd-spawner[kubernetes]", "sandherd-worker"),
    "monitor-assessor": (_ALL, "sandherd-monitor[assessor]"),
    "spawner-daytona": (_ALL, "sandherd-spawner[daytona,kubernetes]", "sandherd-worker"),
    "event-ingest": (_ALL, "sandherd-event-ingest"),
    "monitor": (_ALL, "sandherd-monitor"),
    "message-relay": (_ALL, "sandherd-message-relay"),
    "gateway": (_ALL, "sandherd-gateway"),
    "cli": (_ALL, "sandherd[cli]"),
    "building": ("hatchling", "setuptools", "uv"),
}
"""The distributions of each image. The spawner has the worker, because it uploads it to sandboxes. The packages of
`building` are needed to build images, and are in none of them."""
NO_SERVICES: Final = ("cli", "building")
_OURS: Final = "sandherd"
_LINUX: Final = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
_PYTHONS: Final = ("3.11.4", "3.12.0", "3.13.0")


def contents() -> dict[str, list[str]]:
    """The names of all packages in each image, except our own. `shared` has those that every service has."""
    found = {image: _names(wanted) for image, wanted in IMAGES.items()}
    services = [set(names) for image, names in found.items() if image not in NO_SERVICES]
    return {**found, "shared": sorted(set.intersection(*services))}


def _names(wanted: tuple[str, ...]) -> list[str]:
    found = {name for text in wanted for name in _needed(Requirement(text), set())}
    return sorted(name for name in found if not name.startswith(_OURS))


def _needed(requirement: Requirement, seen: set[str]) -> Iterator[str]:
    """The names of a requirement and of its dependencies on Linux, on any Python that we support."""
    if str(requirement) in seen:
        return
    seen.add(str(requirement))
    name = canonicalize_name(requirement.name)
    yield name
    for text in distribution(name).requires or []:
        inner = Requirement(text)
        if _wants(inner, requirement.extras):
            inner.marker = None
            yield from _needed(inner, seen)


def _wants(inner: Requirement, extras: set[str]) -> bool:
    marker = inner.marker
    pythons = ({"python_version": full.rpartition(".")[0], "python_full_version": full} for full in _PYTHONS)
    places = ({**_LINUX, **python, "extra": extra} for python in pythons for extra in ("", *extras))
    return marker is None or any(marker.evaluate(place) for place in places)
