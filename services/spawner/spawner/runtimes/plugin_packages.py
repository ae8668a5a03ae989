"""The packages of harness plugins, which have to be visible in the sandboxes of this host. Nothing is imported."""

import os
from pathlib import Path

from sandherd.plugins import HARNESSES, installed
from spawner.runtimes.bubblewrap import folders_of


def plugin_packages() -> tuple[str, ...]:
    """The names of the packages, without our own."""
    return tuple(sorted({plugin.package for plugin in installed(HARNESSES).values() if not plugin.is_builtin}))


def search_path(packages: tuple[str, ...], python_path: str) -> str:
    """The entries of this PYTHONPATH that contain one of these packages. A worker needs these entries, too."""
    needed = {folder.parent.resolve() for package in packages for folder in folders_of(package)}
    return os.pathsep.join(
        entry for entry in python_path.split(os.pathsep) if entry and Path(entry).resolve() in needed
    )
