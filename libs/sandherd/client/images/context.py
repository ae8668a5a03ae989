"""The folder that an image is built in: the Dockerfile, and the worker for the Python of its base."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.bundle import WORKER, NoWorkerError, compiling, start
from sandherd.client.errors import HerdError
from sandherd.client.images.base import LIBCS, MINORS, OWN, Kind
from sandherd.client.images.wheels import fetch, packages
from sandherd.contracts.errors import Code

DOCKERFILE: Final = Path(__file__).with_name("Dockerfile")
_BRING: Final = f"""export UV_PYTHON_INSTALL_DIR={WORKER}/pythons UV_CACHE_DIR=/tmp/uv
{WORKER}/bin/uv python install --no-bin {{minor}}
found=$({WORKER}/bin/uv python find --managed-python {{minor}})
ln -s "${{{{found%/bin/*}}}}" {WORKER}/python
rm {WORKER}/bin/uv
"""
_TRY: Final = "import sandherd_worker.box, sandherd_worker.life, sandherd_worker.attempt, nats.aio.client"


def write(folder: Path, kind: Kind, *, bring: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Write it; with `bring` it fetches a Python while it is built. Raises `HerdError`, `OSError`."""
    worker = folder / WORKER.lstrip("/")
    with tempfile.TemporaryDirectory(prefix="sandherd-wheels-") as fetched:
        try:
            found = packages(kind, Path(fetched), environ)
        except NoWorkerError as error:
            raise HerdError.of(
                Code.NOT_FOUND, str(error), remedy="run this where the spawner runs, with sandherd-worker installed"
            ) from None
        for path, file in found.items():
            _put(worker / "lib" / path, file.read_bytes(), 0o644)
    _put(worker / "bin" / "sandherd-box", start(kind.minor).encode(), 0o755)
    _put(worker / "bin" / "make", making(kind, bring=bring).encode(), 0o755)
    if bring:
        _bring_uv(worker / "bin", kind, environ)
    shutil.copyfile(DOCKERFILE, folder / "Dockerfile")


def written(folder: Path, *, minor: str | None, libc: str | None, machine: str | None) -> Kind:
    """Write it for a kind of Python; what is not said is as it is here. Raises `HerdError`."""
    kind = Kind(minor or OWN.minor, libc or OWN.libc, machine or OWN.machine)
    for field, value, known in (("python", kind.minor, MINORS), ("libc", kind.libc, LIBCS)):
        if value not in known:
            raise HerdError.of(
                Code.INVALID_FIELD, f"{field}: {value[:60]!r} is none; there is: {', '.join(known)}", field=field
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise HerdError.of(Code.CONFLICT, f"{folder} is not empty", field="folder", remedy="name a new folder")
        write(folder, kind, bring=False)
    except OSError as error:
        raise HerdError.of(
            Code.REFUSED, f"{folder} can't be written: {error.strerror or error}", field="folder", remedy="name another"
        ) from None
    return kind


def making(kind: Kind, *, bring: bool) -> str:
    """What is run once in the image."""
    first = _BRING.format(minor=kind.minor) if bring else ""
    loaded = f'PYTHONPATH={WORKER}/lib "$python" -P -c "{_TRY}"'
    return f"#!/bin/sh\nset -e\n{first}({compiling(kind.minor)})\n{_python(kind)}\n{loaded}\nrm {WORKER}/bin/make\n"


def _python(kind: Kind) -> str:
    return f"python=$(command -v {WORKER}/python/bin/python3 || command -v python{kind.minor} || command -v python3)"


def _bring_uv(folder: Path, kind: Kind, environ: Mapping[str, str]) -> None:
    """The one for musl is linked with nothing, and so runs anywhere."""
    with tempfile.TemporaryDirectory(prefix="sandherd-uv-") as fetched:
        fetch(["uv"], Kind(kind.minor, "musl", kind.machine), Path(fetched), environ)
        _put(folder / "uv", Path(fetched, "bin", "uv").read_bytes(), 0o755)


def _put(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
