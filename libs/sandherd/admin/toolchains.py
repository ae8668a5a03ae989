"""Installs agent SDKs: a virtual environment for each kind, with the versions and hashes of a lock file.

A new environment is created beside an existing one, and replaces it when it is complete.
"""

import hashlib
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.private_files import make_directory, write_file

PYTHON_OF_KIND: Final[Mapping[str, str]] = {"claude": "3.11", "openhands": "3.12", "acp": "3.11"}
"""The oldest Python version that the SDK of each kind of agent supports."""
_STAMP_FILE: Final = "sandherd-lock.sha256"  # a file in a complete environment, with the hash of its lock file
_MAX_ERROR_LINES: Final = 5
_DIRECTORY_MODE: Final = 0o755
"""The mode of directories, whatever the umask: sandboxes read them with other user ids, only the owner may change
them."""
_FILE_MODE: Final = 0o644
_UMASK: Final = 0o022


def lock_of(kind: str) -> Path:
    """The lock file for a kind, which is part of the worker's package. Raises `HerdError`."""
    spec = importlib.util.find_spec("sandherd_drivers")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    for folder in folders:
        for directory in (folder / "toolchains", folder.parent / "toolchains"):
            if (lock := directory / f"{kind}.lock").is_file():
                return lock
    raise HerdError.of(
        Code.NOT_FOUND,
        f"no lock file for {kind} found: it is part of sandherd-worker",
        remedy="run this where the spawner runs, with sandherd-worker installed",
    )


def is_installed(kind: str, directory: Path, lock: Path) -> bool:
    """Whether exactly the packages of this lock file are installed, and not every user of this host may change them."""
    stamp = directory / kind / _STAMP_FILE
    return stamp.is_file() and stamp.read_text() == _digest(lock) and not is_world_writable(directory / kind)


def is_world_writable(tree: Path) -> bool:
    """Whether every user of this host may write to a file or directory of the tree, for example because of umask 0."""
    return any(state.st_mode & stat.S_IWOTH for _, state in _stats(tree))


def state(kind: str, directory: Path) -> str:
    """The state of a kind's SDK: `installed`, `outdated` (not the versions of the lock file), `absent` or `writable`.

    `writable` means that every user of this host may have changed the SDK, and thereby the code that agents run.
    Without a lock file, an SDK with any versions is `installed`.
    """
    if not (directory / kind / "bin" / "python").exists():
        return "absent"
    if is_world_writable(directory / kind):
        return "writable"
    try:
        lock = lock_of(kind)
    except HerdError:
        return "installed"
    return "installed" if is_installed(kind, directory, lock) else "outdated"


def install(
    kind: str, directory: Path, lock: Path, environ: Mapping[str, str] = os.environ, *, compile_modules: bool = True
) -> Path:
    """Install the SDK for a kind, and return its interpreter. Raises `HerdError` with the end of uv's output.

    SDKs are read-only in sandboxes, so without `compile_modules`, every agent compiles the modules again at its start.
    """
    uv, env = _uv(environ), _uv_environment(environ)
    make_directory(directory, _DIRECTORY_MODE)
    _restrict_writers(directory)
    new_environment = _create(f".{kind}-", directory)
    try:
        _run(
            [uv, "venv", "-q", "--clear", "--relocatable", "--python", _python_for(kind, env), str(new_environment)],
            env,
        )
        python = new_environment / "bin" / "python"
        options = ["--require-hashes", *(("--compile-bytecode",) if compile_modules else ())]
        _run([uv, "pip", "sync", "-q", *options, "--python", str(python), str(lock)], env)
        _set_modes(new_environment)
        write_file(new_environment / _STAMP_FILE, _digest(lock), _FILE_MODE)
        _replace(new_environment, directory / kind)
    finally:
        shutil.rmtree(new_environment, ignore_errors=True)
    return directory / kind / "bin" / "python"


def run_uv(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Run uv with the package index that pip uses. Raises `HerdError` with the end of uv's output."""
    _run([_uv(environ), *arguments], _uv_environment(environ))


def _create(prefix: str, within: Path) -> Path:
    """Create a directory with the mode `_DIRECTORY_MODE`, whatever the umask."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    directory.chmod(_DIRECTORY_MODE)
    return directory


def _restrict_writers(directory: Path) -> None:
    """If every user may write to the directory, and thus replace its contents, permit only its owner to write to it.

    An earlier version created it with such a mode under some umasks.
    """
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & stat.S_IWOTH:
        directory.chmod(mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def _set_modes(tree: Path) -> None:
    """Set the modes of a tree.

    `uv` links files of its cache, whose modes depend on the umask of the run that cached them.
    """
    for path, state in _stats(tree):
        executable = stat.S_ISDIR(state.st_mode) or state.st_mode & stat.S_IXUSR
        mode = _DIRECTORY_MODE if executable else _FILE_MODE
        if stat.S_IMODE(state.st_mode) != mode:
            path.chmod(mode)


def _stats(tree: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The paths of a tree with their `stat` results. It includes the root, and no symbolic links."""
    for folder, _, files in os.walk(tree):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if not stat.S_ISLNK((state := path.lstat()).st_mode):
                yield path, state


def _replace(new_environment: Path, target: Path) -> None:
    old_environment = _create(f".{target.name}-old-", target.parent)
    try:
        if target.exists():
            target.rename(old_environment / target.name)
        new_environment.rename(target)
    finally:
        shutil.rmtree(old_environment, ignore_errors=True)


def _python_for(kind: str, environ: Mapping[str, str]) -> str:
    """The interpreter for uv: this one if it is new enough, else one of the kind's version on PATH.

    For openhands, it is always one of the kind's version.

    If PATH has none, it is the number of that version, for which uv finds or downloads an interpreter.
    """
    version = PYTHON_OF_KIND[kind]
    is_new_enough = sys.version_info >= tuple(map(int, version.split(".")))
    if is_new_enough and kind != "openhands":
        return sys.executable
    # pyenv's shims on PATH start an interpreter only if the version is selected, which uv does not do.
    variants: tuple[Mapping[str, str], ...] = ({}, {"PYENV_VERSION": version})
    return next(
        (path for variables in variants if (path := _interpreter_path(f"python{version}", {**environ, **variables}))),
        version,
    )


def _interpreter_path(python: str, env: Mapping[str, str]) -> str | None:
    """The real path of an interpreter on PATH; None if it does not run."""
    path = shutil.which(python, path=env.get("PATH"))
    if path is None:
        return None
    command = [path, "-c", "import sys; print(sys.executable)"]
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return process.stdout.strip() or None if process.returncode == 0 else None


def _uv(environ: Mapping[str, str]) -> str:
    program = shutil.which("uv", path=environ.get("PATH")) or shutil.which("uv", path=str(Path(sys.executable).parent))
    if program is None:
        raise HerdError.of(Code.UNAVAILABLE, "uv is not installed here", remedy="install it, as with `pip install uv`")
    return program


def _uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables for uv, including pip's package index and certificate: uv ignores pip's variables."""
    names = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "SSL_CERT_FILE": "PIP_CERT"}
    variables = {
        uv_name: environ[pip_name]
        for uv_name, pip_name in names.items()
        if uv_name not in environ and pip_name in environ
    }
    return {**{name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}, **variables}


def _run(command: list[str], env: Mapping[str, str]) -> None:
    process = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, umask=_UMASK
    )
    if process.returncode:
        end_of_output = " / ".join(process.stderr.strip().splitlines()[-_MAX_ERROR_LINES:])
        raise HerdError.of(
            Code.UNAVAILABLE,
            f"installation failed: {end_of_output}",
            remedy="fix the error that uv reports, and try again",
        )


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()
