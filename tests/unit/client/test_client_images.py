"""Images with the worker: the base is probed, the build context written, and failures are reported."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from sandherd.admin.images import agent_sdks, base, build, build_context, docker
from sandherd.admin.images.agent_sdks import SDKS
from sandherd.admin.images.base import THIS_PLATFORM, BaseImage, PythonPlatform
from sandherd.admin.images.build import ImageBuildRequest
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.worker_bundle import MINOR, WORKER, start

ROOT = Path(__file__).parents[3]
OTHER = "3.13" if MINOR != "3.13" else "3.12"
SOCKET = "unix:///var/run/docker.sock"
NO_PERMISSION = "permission denied while trying to connect to the"
DIAL = 'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": dial unix /var/run/docker.sock:'


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("python 3.11\npython 3.11\nmachine x86_64", BaseImage(("3.11",), "gnu", "x86_64")),
        ("python 3.11\ngit yes\nmachine x86_64", BaseImage(("3.11",), "gnu", "x86_64", git=True)),
        ("python 3.9\nlibc musl\nmachine aarch64", BaseImage((), "musl", "aarch64")),
        ("python 3.13\npython 3.12\nmachine x86_64", BaseImage(("3.13", "3.12"), "gnu", "x86_64")),
    ],
)
def test_base_image_is_read_from_its_probe(output: str, found: BaseImage) -> None:
    """The matching Pythons, the C library and the machine are read."""
    assert base.parse_inspection(output) == found


def test_python_of_this_machine_is_preferred() -> None:
    """This machine's packages are copied as installed; else the first that fits, or the same if one is downloaded."""
    assert BaseImage((OTHER, MINOR), "gnu", "x86_64").python_platform().minor == MINOR
    assert BaseImage((OTHER,), "gnu", "x86_64").python_platform().minor == OTHER
    assert BaseImage((), "gnu", "x86_64").python_platform().minor == MINOR


def test_python_is_new_enough_for_the_agents_sdk() -> None:
    """A base whose Python is older than the SDK needs is treated as one without Python."""
    older = BaseImage(("3.11",), "gnu", "x86_64")
    assert (
        older.has_python("3.11"),
        older.has_python("3.12"),
        BaseImage(("3.13",), "gnu", "x86_64").has_python("3.12"),
    ) == (
        True,
        False,
        True,
    )
    assert older.python_platform("3.12").minor in {"3.12", "3.13"}
    assert "none" not in build.build_arguments(
        ImageBuildRequest(base="debian:12", tag="agents:1", harnesses=("openhands",)), older, buildx=True
    )


def test_sdks_stay_where_they_are_when_a_python_is_downloaded(tmp_path: Path) -> None:
    """Beside a folder named `toolchains`, uv takes that for its own of an earlier version, and moves it."""
    script = build_context.build_script(BaseImage((), "gnu", "x86_64").python_platform(), ("claude",), download=True)
    sdk = tmp_path / SDKS.removeprefix(f"{WORKER}/") / "claude"
    sdk.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").symlink_to(find_uv_bin())
    placed = script.replace(WORKER, str(tmp_path)).replace("/tmp/uv", f"{tmp_path}/cache")
    # Without a network it ends at the download, after uv has looked at its folders.
    subprocess.run(["sh", "-c", placed], env={**os.environ, "UV_OFFLINE": "1"}, check=False, capture_output=True)
    assert sdk.is_dir()
    assert not sdk.parent.is_symlink()


def test_sdk_with_a_file_for_another_python_is_added(tmp_path: Path) -> None:
    """OpenHands needs a package with a file of Python 2, which can't be compiled."""
    packages = tmp_path / "openhands" / "lib" / "func_timeout"
    packages.mkdir(parents=True)
    (packages / "py2_raise.py").write_text("raise exception[0] , None , 1\n")
    (packages / "good.py").write_text("x = 1\n")
    script = f'set -e\npython="{sys.executable}"\n' + agent_sdks.completion_script(("openhands",)).replace(
        SDKS, str(tmp_path)
    )
    subprocess.run(["sh", "-c", script], check=True, capture_output=True)
    assert list(packages.glob("__pycache__/good.*.pyc"))


def test_base_without_a_shell_is_refused() -> None:
    """The base can't be probed."""
    with pytest.raises(HerdError, match="has no shell"):
        base.parse_inspection("")


def test_docker_gets_build_arguments() -> None:
    """Buildx is used if it exists, and the network only if something has to be downloaded."""
    order = ImageBuildRequest(base="debian:12", tag="agents:1", platform="linux/arm64")
    with_python, without = BaseImage(("3.11",), "gnu", "x86_64"), BaseImage((), "gnu", "x86_64")
    words = build.build_arguments(order, with_python, buildx=True)
    assert words[:2] == ["buildx", "build"]
    assert {"--load", "BASE=debian:12", "linux/arm64", "agents:1", "none"} <= set(words)
    assert "none" not in build.build_arguments(order, without, buildx=True)
    assert build.build_arguments(order, with_python, buildx=False)[0] == "build"


@pytest.mark.parametrize("name", ["--privileged", "", "a b", "a;b", "-"])
def test_invalid_image_name_is_refused(name: str) -> None:
    """Docker could take it for an option."""
    for order in (ImageBuildRequest(base=name, tag="agents:1"), ImageBuildRequest(base="debian:12", tag=name)):
        with pytest.raises(HerdError, match="is not an image name") as raised:
            build.build(order)
        assert raised.value.problem.remedy


def test_missing_docker_is_reported_with_an_alternative(tmp_path: Path) -> None:
    """The remedy names it."""
    with pytest.raises(HerdError, match="docker command is not installed") as raised:
        build.build(ImageBuildRequest(base="debian:12", tag="agents:1"), {"PATH": str(tmp_path)})
    assert "sandherd image context" in (raised.value.problem.remedy or "")


@pytest.mark.parametrize(
    ("output", "code", "remedy"),
    [
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", Code.UNAVAILABLE, "start"),
        (f"{NO_PERMISSION} Docker daemon socket at {SOCKET}: {DIAL} connect: permission denied", Code.REFUSED, "group"),
        (f"{NO_PERMISSION} docker API at {SOCKET}", Code.REFUSED, "group"),
        (f"{DIAL} connect: permission denied", Code.REFUSED, "group `docker`"),
        (f"{DIAL} connect: no such file or directory", Code.UNAVAILABLE, "start"),
        ("denied: requested access to the resource is denied", Code.REFUSED, "docker login"),
        ("Error response from daemon: manifest unknown", Code.NOT_FOUND, "name is right"),
        ("exec /bin/sh: exec format error", Code.REFUSED, "that platform"),
        ("the sky is falling", Code.REFUSED, "fix what docker reports"),
    ],
)
def test_failure_of_docker_has_a_remedy(output: str, code: Code, remedy: str) -> None:
    """Each kind of failure has a remedy of its own."""
    problem = docker.docker_error("it", output).problem
    assert (problem.code, remedy in (problem.remedy or "")) == (code, True)
    assert output[-20:] in problem.message


def test_build_folder_is_complete(tmp_path: Path) -> None:
    """The Dockerfile is the one in `deploy`, and the worker in it can be loaded by a Python without packages."""
    kind = build_context.write_new(tmp_path / "new", minor=None, libc=None, machine=None)
    assert kind == THIS_PLATFORM
    dockerfile = (tmp_path / "new/Dockerfile").read_text()
    assert dockerfile == (ROOT / "deploy/images/sandbox/Dockerfile").read_text()
    lib = tmp_path / "new/opt/sandherd/lib"
    assert not list(lib.rglob("*.pyc"))
    code = "import sandherd_worker.main, sandherd_worker.worker_lifecycle; print(sandherd_worker.main.__file__)"
    env = {"PYTHONPATH": str(lib), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().startswith(str(lib)), done.stderr
    assert (tmp_path / "new/opt/sandherd/bin/sandherd-box").read_text() == start()
    with pytest.raises(HerdError, match="not empty"):
        build_context.write_new(tmp_path / "new", minor=None, libc=None, machine=None)


@pytest.mark.parametrize(("field", "value"), [("minor", "2.7"), ("libc", "bionic")])
def test_unknown_kind_of_image_is_refused(tmp_path: Path, field: str, value: str) -> None:
    """The error lists the known ones."""
    requested: dict[str, Any] = {"minor": None, "libc": None, "machine": None}
    with pytest.raises(HerdError, match="use one of: "):
        build_context.write_new(tmp_path / "new", **requested | {field: value})


def test_python_is_installed_only_on_request() -> None:
    """Uv installs it during the build; without the request nothing is downloaded."""
    kind = PythonPlatform("3.12", "gnu", "x86_64")
    assert "uv python install --no-bin 3.12" in build_context.build_script(kind, download=True)
    assert "uv" not in build_context.build_script(kind, download=False).split("compileall")[0]


def test_other_platform_gets_its_own_wheels(tmp_path: Path) -> None:
    """For Alpine's C library, another version and another machine: the same versions, compiled for that."""
    build_context.write_new(tmp_path / "new", minor=OTHER, libc="musl", machine="aarch64")
    lib = tmp_path / "new/opt/sandherd/lib"
    compiled = {path.name for path in lib.rglob("*.so*")}
    assert any(name.startswith("_pydantic_core.") and "aarch64-linux-musl" in name for name in compiled), compiled
    assert (lib / "sandherd_worker/box.py").exists()


def test_agent_sdk_is_added_for_the_images_python(tmp_path: Path) -> None:
    """Its packages have the versions of its lock, its Python is the image's, and the worker is pointed to it."""
    build_context.write_new(tmp_path / "new", minor=OTHER, libc=None, machine=None, harnesses=("acp",))
    packages = tmp_path / f"new/opt/sandherd/toolchains/acp/lib/python{OTHER}/site-packages"
    assert (packages / "acp/__init__.py").exists()
    assert not (packages / "bin").exists()
    assert "ENV SANDHERD_TOOLCHAINS=/opt/sandherd/toolchains" in (tmp_path / "new/Dockerfile").read_text()
    script = (tmp_path / "new/opt/sandherd/bin/make").read_text()
    assert "-m venv --without-pip --symlinks /opt/sandherd/toolchains/acp" in script


def test_unknown_agent_sdk_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """The error lists the known kinds; a Python that is too old for one is refused as well."""
    order = ImageBuildRequest(base="debian:12", tag="agents:1", harnesses=("command",))
    with pytest.raises(HerdError, match="use one of: acp, claude, openhands"):
        build.build(order, {"PATH": str(tmp_path)})
    with pytest.raises(HerdError, match=r"openhands needs Python 3\.12 or newer"):
        build_context.write_new(tmp_path / "new", minor="3.11", libc=None, machine=None, harnesses=("openhands",))
    assert not (tmp_path / "new").exists()


def test_worker_without_its_source_can_be_loaded(tmp_path: Path) -> None:
    """`binary`: the script leaves the bytecode of every module and no source; an unknown target is refused first."""
    build_context.write_new(tmp_path / "new", minor=None, libc=None, machine=None, target="binary")
    opt = tmp_path / "new/opt"
    script = opt / "sandherd/bin/make"
    script.write_text(script.read_text().replace("/opt/", f"{opt}/"))
    modules = {path.relative_to(opt).with_suffix("") for path in opt.rglob("*.py")}
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", str(script)], env=env, check=True)
    assert not list(opt.rglob("*.py"))
    assert {path.relative_to(opt).with_suffix("") for path in opt.rglob("*.pyc")} == modules
    with pytest.raises(HerdError, match="use one of: source, binary"):
        build_context.write_new(tmp_path / "other", minor=None, libc=None, machine=None, target="final")
    with pytest.raises(HerdError, match="use one of: source, binary"):
        build.build(ImageBuildRequest(base="debian:12", tag="agents:1", target="final"), {"PATH": str(tmp_path)})
    assert not (tmp_path / "other").exists()
