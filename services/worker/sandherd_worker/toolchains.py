"""Where an agent's SDK is installed: an interpreter of its own for each kind."""

import importlib.util
from pathlib import Path

from sandherd_worker.assignment import Assignment


class NoToolchainError(Exception):
    """This host has no SDK for a kind of agent. The message says how it gets one."""


def interpreter(who: Assignment, kind: str) -> Path:
    """The Python that has the SDK. Raises `NoToolchainError`."""
    python = None if who.toolchains is None else who.toolchains / kind / "bin" / "python"
    if python is None or not python.exists():
        raise NoToolchainError(f"the SDK for {kind} is not installed here: `sandherd harness install {kind}` does it")
    return python


def lay_drivers(folder: Path) -> Path:
    """A directory in which an interpreter finds our drivers, and nothing else of ours. Raises `OSError`."""
    spec = importlib.util.find_spec("sandherd_drivers")
    if spec is None or not spec.submodule_search_locations:
        raise NoToolchainError("the drivers are not installed beside the worker")
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "sandherd_drivers"
    if not link.is_symlink():
        link.symlink_to(spec.submodule_search_locations[0], target_is_directory=True)
    return folder
