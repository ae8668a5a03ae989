"""Versions of Sandherd side by side, each in a folder with a Python that can import no other.

The last release is made from this repository's history, with the dependencies of today. What a worker needs lies whole
in the folder, so that it is there in a sandbox as well.
"""

import compileall
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from sandherd import worker_bundle
from tests.engines.packages import alone
from tests.releases.archived import ROOT, archived
from tests.releases.release_record import last_release

_PACKAGES: Final = Path("lib", f"python{worker_bundle.MINOR}", "site-packages")
_OF_SERVICES: Final = {"spawner", "event_ingest", "message_relay", "monitor", "gateway"}
_CLI: Final = ("sandherd.cli", "sandherd.client.cli")
"""Where the command is, and where it was in version 0.1."""
_ONLY_OF_THE_RELEASE: Final = ("watchfiles", "anyio", "idna", "sniffio")
"""What its worker needs, and today's does not."""
_PROGRAMS: Final = {f"sandherd-{name.replace('_', '-')}": f"{name}.main" for name in sorted(_OF_SERVICES)}


def last() -> Path:
    """The last release's Python, installed once. Raises `NoHistoryError`."""
    commit = last_release().commit
    with alone("releases", ROOT / "build") as folder:
        place = folder / f"{commit[:12]}-{worker_bundle.MINOR}-{_dependencies()}"
        if not place.exists():
            making = place.with_name(f"{place.name}.new")
            shutil.rmtree(making, ignore_errors=True)
            install(making, lambda packages: _unpack(commit, packages), _ONLY_OF_THE_RELEASE)
            _add_programs(making)
            making.rename(place)
    return place / "bin" / "python"


def todays(place: Path) -> Path:
    """The Python of this checkout's worker, installed in `place`."""
    install(place, _copy)
    return place / "bin" / "python"


def install(place: Path, put: Callable[[Path], None], more: Sequence[str] = ()) -> None:
    """Make a folder whose Python finds what `put` puts there, and what that needs, with `more` distributions."""
    packages = place / _PACKAGES
    packages.mkdir(parents=True)
    (place / "bin").mkdir()
    base = Path(sys.base_prefix, "bin", f"python{worker_bundle.MINOR}")
    (place / "bin" / "python").symlink_to(base)
    (place / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    put(packages)
    compileall.compile_dir(packages, quiet=1)
    for path, file in dict(_needed(more)).items():
        _link(file, packages / path)
    # Beside it, and outside of sandboxes, what services need: the folder alone, without what is installed in place.
    (packages / "others.pth").write_text(f"{Path(sys.prefix) / _PACKAGES}\n")


def _add_programs(place: Path) -> None:
    """The commands, which find this Python wherever the folder is moved to."""
    cli = next(name for name in _CLI if (place / _PACKAGES).joinpath(*name.split(".")).is_dir())
    for name, module in {"sandherd": cli, **_PROGRAMS}.items():
        script = place / "bin" / name
        start = f"import sys; sys.argv[0] = '{name}'; from {module} import main; main()"
        script.write_text(f'#!/bin/sh\nexec "${{0%/*}}/python" -P -c "{start}" "$@"\n')
        script.chmod(0o755)


def _needed(more: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """What the worker needs of others, with what is compiled of that."""
    for one in (*worker_bundle.needed(), *map(distribution, more)):
        for path, file in worker_bundle.installed(one).items():
            if file.suffix != ".pth":
                yield Path(path), file
                compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
                if file.suffix == ".py" and compiled.exists():
                    yield Path(path).parent / "__pycache__" / compiled.name, compiled


def _link(file: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.hardlink_to(file)
    except OSError:  # another file system
        shutil.copy2(file, path)


def _unpack(commit: str, packages: Path) -> None:
    ours = {*worker_bundle.OWN_PACKAGES, *_OF_SERVICES}
    for name, content in archived(commit, "libs", "services"):
        parts = Path(name).parts[1 if name.startswith("libs/") else 2 :]
        if len(parts) > 1 and parts[0] in ours:
            _write(packages.joinpath(*parts), content)


def _copy(packages: Path) -> None:
    for path, file in worker_bundle.own_files().items():
        _write(packages / path, file.read_bytes())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _dependencies() -> str:
    return sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()[:12]
