"""The build context of an image: the Dockerfile, and the worker for the Python of its base.

For a Python platform other than that of this machine, uv downloads the same versions of the worker's packages.
"""

import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from sandherd.admin.images import agent_sdks
from sandherd.admin.images.base import LIBCS, MINORS, THIS_PLATFORM, BaseImage, PythonPlatform, download_options
from sandherd.admin.toolchains import run_uv
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.worker_bundle import WORKER, NoWorkerError, compiling, files, installed, needed, own_files, start

DOCKERFILE: Final = Path(__file__).with_name("Dockerfile")
_DOWNLOAD_PYTHON: Final = f"""export UV_PYTHON_INSTALL_DIR={WORKER}/pythons/uv UV_CACHE_DIR=/tmp/uv
{WORKER}/bin/uv python install --no-bin {{minor}}
found=$({WORKER}/bin/uv python find --managed-python {{minor}})
ln -s "${{{{found%/bin/*}}}}" {WORKER}/python
rm {WORKER}/bin/uv
"""
"""The script that installs a Python. uv moves a folder `toolchains` beside its install folder into that, because its
earlier versions used this name. So the folder of uv is not beside that of the SDKs."""
TARGETS: Final = ("source", "binary")
"""The forms of the worker in an image: its source with the bytecode, or only the bytecode."""
_REMOVE_SOURCE: Final = f"find {WORKER}/lib -type f -name '*.py' -delete\n"
"""The line of the build's script that leaves only the bytecode of the worker."""
_IMPORT_CHECK: Final = (
    "import sandherd_worker.box, sandherd_worker.worker_lifecycle, sandherd_worker.attempt, nats.aio.client"
)
"""The code that the build runs to check that the worker can be imported in the image."""


def write(
    folder: Path,
    platform: PythonPlatform,
    *,
    download: bool,
    harnesses: tuple[str, ...] = (),
    target: str = TARGETS[0],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Write the build context, with the SDKs of these kinds of agent. Raises `HerdError`, `OSError`.

    With `download`, the build downloads a Python.
    """
    worker = folder / WORKER.lstrip("/")
    with tempfile.TemporaryDirectory(prefix="sandherd-wheels-") as fetched:
        try:
            files_by_path = packages(platform, Path(fetched), environ)
        except NoWorkerError as error:
            raise HerdError.of(
                Code.NOT_FOUND, str(error), remedy="run this where the spawner runs, with sandherd-worker installed"
            ) from None
        for path, file in files_by_path.items():
            _write(worker / "lib" / path, file.read_bytes(), 0o644)
    _write(worker / "bin" / "sandherd-box", start(platform.minor).encode(), 0o755)
    _write(worker / "bin" / "make", build_script(platform, harnesses, download=download, target=target).encode(), 0o755)
    agent_sdks.add(folder, harnesses, platform, environ)
    if download:
        _add_uv(worker / "bin", platform, environ)
    (folder / "Dockerfile").write_text(DOCKERFILE.read_text() + agent_sdks.environment_line(harnesses))


def write_new(
    folder: Path,
    *,
    minor: str | None,
    libc: str | None,
    machine: str | None,
    harnesses: tuple[str, ...] = (),
    target: str = TARGETS[0],
) -> PythonPlatform:
    """Write the build context to a new or empty folder. Returns its Python platform. Raises `HerdError`.

    A part of the platform that is None is that of this machine.
    """
    oldest = agent_sdks.oldest_python(agent_sdks.checked_kinds(harnesses))
    default_platform = BaseImage((), THIS_PLATFORM.libc, THIS_PLATFORM.machine).python_platform(oldest)
    platform = PythonPlatform(
        minor or default_platform.minor, libc or default_platform.libc, machine or default_platform.machine
    )
    for field, value, known in (("python", platform.minor, MINORS), ("libc", platform.libc, LIBCS)):
        check_choice(field, value, known)
    check_choice("target", target, TARGETS)
    if not BaseImage((platform.minor,), platform.libc, platform.machine).has_python(oldest):
        raise HerdError.of(
            Code.INVALID_FIELD, f"python: {', '.join(harnesses)} needs Python {oldest} or newer", field="python"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise HerdError.of(Code.CONFLICT, f"{folder} is not empty", field="folder", remedy="name a new folder")
        write(folder, platform, download=False, harnesses=harnesses, target=target)
    except OSError as error:
        raise HerdError.of(
            Code.REFUSED,
            f"{folder} can't be written: {error.strerror or error}",
            field="folder",
            remedy="name another",
        ) from None
    return platform


def check_choice(field: str, value: str, known: Collection[str]) -> None:
    """Raise `HerdError` if the value is not one of `known`."""
    if value not in known:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{field}: {value[:60]!r} is not supported; use one of: {', '.join(known)}",
            field=field,
        )


def packages(platform: PythonPlatform, folder: Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, Path]:
    """All files of the worker's folder `lib`, by their path in it. Raises `HerdError`, `NoWorkerError`.

    Pure Python packages are copied from this machine; others are downloaded into `folder`.
    """
    if platform == THIS_PLATFORM:
        return files()
    files_by_path: dict[str, Path] = {}
    to_download = []
    for distribution in needed():
        installed_files = installed(distribution)
        if any(path.endswith(".so") for path in installed_files):
            to_download.append(f"{distribution.name}=={distribution.version}")
        else:
            files_by_path |= installed_files
    fetch(to_download, platform, folder, environ)
    files_by_path |= {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    return {path: file for path, file in files_by_path.items() if not path.startswith("bin/")} | own_files()


def fetch(
    requirements: list[str], platform: PythonPlatform, folder: Path, environ: Mapping[str, str] = os.environ
) -> None:
    """Install packages into a folder, from wheels for a Python platform; none is built. Raises `HerdError`."""
    wheels_only = ["--only-binary", ":all:", "--no-deps"]
    run_uv(
        ["pip", "install", "-q", "--target", str(folder), *download_options(platform), *wheels_only, *requirements],
        environ,
    )


def build_script(
    platform: PythonPlatform, harnesses: tuple[str, ...] = (), *, download: bool, target: str = TARGETS[0]
) -> str:
    """The script that runs once in the image, during the build."""
    without_source = target == "binary"
    download_script = _DOWNLOAD_PYTHON.format(minor=platform.minor) if download else ""
    import_check = f'PYTHONPATH={WORKER}/lib "$python" -P -c "{_IMPORT_CHECK}"'
    parts = (
        "#!/bin/sh\nset -e\n",
        download_script,
        f"({compiling(platform.minor, beside_source=without_source)})\n{_find_python(platform)}\n",
        _REMOVE_SOURCE if without_source else "",
        agent_sdks.completion_script(harnesses),
        f"{import_check}\nrm {WORKER}/bin/make\n",
    )
    return "".join(parts)


def _find_python(platform: PythonPlatform) -> str:
    """The line of the script that sets `python`: to the downloaded Python, or else to one of the image."""
    return (
        f"python=$(command -v {WORKER}/python/bin/python3 || command -v python{platform.minor} || command -v python3)"
    )


def _add_uv(folder: Path, platform: PythonPlatform, environ: Mapping[str, str]) -> None:
    """Add uv. Its musl build is statically linked, and so runs with any libc."""
    with tempfile.TemporaryDirectory(prefix="sandherd-uv-") as fetched:
        fetch(["uv"], PythonPlatform(platform.minor, "musl", platform.machine), Path(fetched), environ)
        _write(folder / "uv", Path(fetched, "bin", "uv").read_bytes(), 0o755)


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
