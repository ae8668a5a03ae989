"""Putting the worker onto an image: what is found out of a base, what is written, and what is said if it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandherd.bundle import MINOR, start
from sandherd.client.errors import HerdError
from sandherd.client.images import base, building, context, docker
from sandherd.client.images.base import OWN, Base, Kind
from sandherd.client.images.building import Order
from sandherd.contracts.errors import Code

ROOT = Path(__file__).parents[3]
OTHER = "3.13" if MINOR != "3.13" else "3.12"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("python 3.11\npython 3.11\nmachine x86_64", Base(("3.11",), "gnu", "x86_64")),
        ("python 3.9\nlibc musl\nmachine aarch64", Base((), "musl", "aarch64")),
        ("python 3.13\npython 3.12\nmachine x86_64", Base(("3.13", "3.12"), "gnu", "x86_64")),
    ],
)
def test_a_base_says_what_it_is(said: str, found: Base) -> None:
    """Its Pythons as far as they fit, its C library and its machine."""
    assert base.read(said) == found


def test_the_python_that_runs_here_goes_before_others() -> None:
    """Then what is installed here is taken as it is; else the first that fits, or the same where one is fetched."""
    assert Base((OTHER, MINOR), "gnu", "x86_64").kind.minor == MINOR
    assert Base((OTHER,), "gnu", "x86_64").kind.minor == OTHER
    assert Base((), "gnu", "x86_64").kind.minor == MINOR


def test_a_base_without_a_shell_is_refused() -> None:
    """It can't say what it is."""
    with pytest.raises(HerdError, match="has no shell"):
        base.read("")


def test_docker_is_told_what_to_build() -> None:
    """With buildx where that is, and without a network unless something has to be fetched."""
    order = Order(base="debian:12", tag="agents:1", platform="linux/arm64")
    with_python, without = Base(("3.11",), "gnu", "x86_64"), Base((), "gnu", "x86_64")
    words = building.words(order, with_python, buildx=True)
    assert words[:2] == ["buildx", "build"]
    assert {"--load", "BASE=debian:12", "linux/arm64", "agents:1", "none"} <= set(words)
    assert "none" not in building.words(order, without, buildx=True)
    assert building.words(order, with_python, buildx=False)[0] == "build"


@pytest.mark.parametrize("name", ["--privileged", "", "a b", "a;b", "-"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """Before docker could take it for an option."""
    for order in (Order(base=name, tag="agents:1"), Order(base="debian:12", tag=name)):
        with pytest.raises(HerdError, match="no name of an image") as raised:
            building.build(order)
        assert raised.value.problem.remedy


def test_without_docker_there_is_another_way(tmp_path: Path) -> None:
    """The remedy names it."""
    with pytest.raises(HerdError, match="no docker command") as raised:
        building.build(Order(base="debian:12", tag="agents:1"), {"PATH": str(tmp_path)})
    assert "sandherd image context" in (raised.value.problem.remedy or "")


@pytest.mark.parametrize(
    ("said", "code", "remedy"),
    [
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", Code.UNAVAILABLE, "start"),
        ("denied: requested access to the resource is denied", Code.REFUSED, "docker login"),
        ("Error response from daemon: manifest unknown", Code.NOT_FOUND, "name is right"),
        ("exec /bin/sh: exec format error", Code.REFUSED, "that platform"),
        ("the sky is falling", Code.REFUSED, "mend what docker says"),
    ],
)
def test_what_docker_says_comes_with_what_helps(said: str, code: Code, remedy: str) -> None:
    """Each kind of failure has a remedy of its own."""
    problem = docker.failure("it", said).problem
    assert (problem.code, remedy in (problem.remedy or "")) == (code, True)
    assert said[-20:] in problem.message


def test_a_folder_to_build_in_is_whole(tmp_path: Path) -> None:
    """The Dockerfile is the one in `deploy`, and the worker in it can be loaded by a Python that has nothing else."""
    kind = context.written(tmp_path / "new", minor=None, libc=None, machine=None)
    assert kind == OWN
    dockerfile = (tmp_path / "new/Dockerfile").read_text()
    assert dockerfile == (ROOT / "deploy/images/sandbox/Dockerfile").read_text()
    lib = tmp_path / "new/opt/sandherd/lib"
    assert not list(lib.rglob("*.pyc"))
    code = "import sandherd_worker.main, sandherd_worker.life; print(sandherd_worker.main.__file__)"
    env = {"PYTHONPATH": str(lib), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().startswith(str(lib)), done.stderr
    assert (tmp_path / "new/opt/sandherd/bin/sandherd-box").read_text() == start()
    with pytest.raises(HerdError, match="not empty"):
        context.written(tmp_path / "new", minor=None, libc=None, machine=None)


@pytest.mark.parametrize(("field", "value"), [("minor", "2.7"), ("libc", "bionic")])
def test_a_kind_that_is_none_is_refused(tmp_path: Path, field: str, value: str) -> None:
    """With those that there are."""
    asked: dict[str, str | None] = {"minor": None, "libc": None, "machine": None}
    with pytest.raises(HerdError, match="there is: "):
        context.written(tmp_path / "new", **asked | {field: value})


def test_a_python_is_brought_where_that_is_asked() -> None:
    """By uv, while the image is built; else nothing is fetched there."""
    kind = Kind("3.12", "gnu", "x86_64")
    assert "uv python install --no-bin 3.12" in context.making(kind, bring=True)
    assert "uv" not in context.making(kind, bring=False).split("compileall")[0]


def test_another_kind_gets_wheels_of_its_own(tmp_path: Path) -> None:
    """For Alpine's C library, another version and another machine: the same versions, compiled for that."""
    context.written(tmp_path / "new", minor=OTHER, libc="musl", machine="aarch64")
    lib = tmp_path / "new/opt/sandherd/lib"
    compiled = {path.name for path in lib.rglob("*.so*")}
    assert any(name.startswith("_pydantic_core.") and "aarch64-linux-musl" in name for name in compiled), compiled
    assert (lib / "sandherd_worker/box.py").exists()
