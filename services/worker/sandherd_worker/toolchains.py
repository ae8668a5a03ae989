"""Locates an agent's SDK, which has its own interpreter for each kind of agent."""

import importlib.util
from pathlib import Path

from sandherd_worker.assignment import Assignment


class NoToolchainError(Exception):
    """This host has no SDK for a kind of agent. The message states how to install it."""


def interpreter(assignment: Assignment, kind: str) -> Path:
    """The Python interpreter that has the SDK. Raises `NoToolchainError`."""
    python = None if assignment.toolchains is None else assignment.toolchains / kind / "bin" / "python"
    if python is None or not python.exists():
        raise NoToolchainError(
            f"the SDK for {kind} is not installed here; run `sandherd harness install {kind}`, or for images "
            f"`sandherd image build --with {kind}`"
        )
    return python


def link_drivers(folder: Path, *others: str) -> Path:
    """Link the drivers and the packages `others` into a folder: an interpreter then finds no other code of the worker.

    Raises `NoToolchainError`, and `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for package in ("sandherd_drivers", *others):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise NoToolchainError(f"package {package} is not installed beside the worker")
        link = folder / package
        if not link.is_symlink():
            link.symlink_to(spec.submodule_search_locations[0], target_is_directory=True)
    return folder
