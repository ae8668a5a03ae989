"""Adds SDKs of agents to an image: for each kind a virtual environment, with the versions and hashes of its lock file.

The packages are downloaded on this machine, for the Python platform of the image, so that the build needs no network.
"""

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from sandherd.admin.images.base import PythonPlatform, download_options
from sandherd.admin.toolchains import PYTHON_OF_KIND, lock_of, run_uv
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.worker_bundle import WORKER

SDKS: Final = f"{WORKER}/toolchains"
"""The folder of the SDKs in the image."""
_SOURCE_ONLY: Final = ("func-timeout",)
"""Packages in the locks that have no wheel. They have no compiled part, so any machine can build them."""
_COMPLETE_SCRIPT: Final = """"$python" -m venv --without-pip --symlinks {folder}
"$python" -m compileall -q --invalidation-mode unchecked-hash {folder}/lib || true
chmod -R go+rX {folder}
"""
"""The script that completes the environment of one kind. Errors of `compileall` are ignored: packages may have files
for another Python (func-timeout has one for Python 2)."""


def checked_kinds(kinds: Collection[str]) -> tuple[str, ...]:
    """These kinds of agent, each once, in alphabetical order. Raises `HerdError` for one without an SDK."""
    for kind in kinds:
        if kind not in PYTHON_OF_KIND:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"with: {kind[:60]!r} has no SDK to install; use one of: {', '.join(sorted(PYTHON_OF_KIND))}",
                field="with",
            )
    return tuple(sorted(set(kinds)))


def oldest_python(kinds: Collection[str]) -> str:
    """The oldest Python version, as major and minor, that supports all of these kinds."""
    return max(
        (PYTHON_OF_KIND[kind] for kind in kinds), default="3.11", key=lambda minor: tuple(map(int, minor.split(".")))
    )


def add(
    folder: Path, kinds: Collection[str], platform: PythonPlatform, environ: Mapping[str, str] = os.environ
) -> None:
    """Download the packages of each kind to the build context. Raises `HerdError`, `OSError`."""
    for kind in kinds:
        packages = folder / SDKS.lstrip("/") / kind / "lib" / f"python{platform.minor}" / "site-packages"
        with tempfile.TemporaryDirectory(prefix=f"sandherd-{kind}-") as temporary:
            _download(kind, Path(temporary) / "packages", platform, environ)
            packages.parent.mkdir(parents=True)
            shutil.move(Path(temporary) / "packages", packages)
        # Commands are not added: their first line names a Python of this machine.
        shutil.rmtree(packages / "bin", ignore_errors=True)


def completion_script(kinds: Collection[str]) -> str:
    """The part of the build's script that completes the SDKs. In it, `$python` is the interpreter."""
    return "".join(_COMPLETE_SCRIPT.format(folder=f"{SDKS}/{kind}") for kind in kinds)


def environment_line(kinds: Collection[str]) -> str:
    """The last line of the Dockerfile, with the folder of the SDKs for the worker; empty without SDKs."""
    return f"ENV SANDHERD_TOOLCHAINS={SDKS}\n" if kinds else ""


def _download(kind: str, target: Path, platform: PythonPlatform, environ: Mapping[str, str]) -> None:
    options = ["--target", str(target), *download_options(platform), "--only-binary", ":all:"]
    sources = [argument for name in _SOURCE_ONLY for argument in ("--no-binary", name)]
    try:
        run_uv(["pip", "install", "-q", *options, *sources, "--require-hashes", "-r", str(lock_of(kind))], environ)
    except HerdError as error:
        raise HerdError.of(
            error.problem.code,
            f"the SDK for {kind} can't be added for Python {platform.minor}, {platform.libc}, {platform.machine}: "
            f"{error.problem.message}",
            remedy=error.problem.remedy,
        ) from None
