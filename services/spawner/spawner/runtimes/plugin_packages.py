"""The packages of harness plugins, which must be visible in the sandboxes of this host. No plugin is imported."""

import os
from pathlib import Path

from sandherd.plugins import HARNESSES, installed
from spawner.runtimes.bubblewrap import folders_of


def plugin_packages() -> tuple[str, ...]:
    """The names of the packages of harness plugins, without our own packages."""
    return tuple(sorted({plugin.package for plugin in installed(HARNESSES).values() if not plugin.is_builtin}))


def search_path(packages: tuple[str, ...], python_path: str) -> str:
    """The entries of `python_path` that contain one of these packages. Workers need these entries in PYTHONPATH."""
    needed = {folder.parent.resolve() for package in packages for folder in folders_of(package)}
    return os.pathsep.join(
        entry for entry in python_path.split(os.pathsep) if entry and Path(entry).resolve() in needed
    )
