"""Finds runtimes and harnesses by the entry points of installed distributions, ours and those of third parties.

Nothing is imported until `Plugin.load`, so a broken distribution harms only its own plugins.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final

from sandherd.contracts.harness_kinds import HarnessKind
from sandherd.contracts.names import SAFE_NAME_PATTERN

RUNTIMES: Final = "sandherd.runtimes"
"""The entry point group of runtimes. The name is the runtime's, the value an async function: see docs/plugins.md."""
HARNESSES: Final = "sandherd.harnesses"
"""The entry point group of harnesses. The name is the kind, the value a `HarnessKind`."""
_BUILTIN: Final = frozenset({"sandherd", "sandherd-spawner"})
_KINDS: Final = {RUNTIMES: "runtime", HARNESSES: "harness"}


class PluginError(Exception):
    """A plugin can't be used. The message names it, its distribution and the reason."""


@dataclass(frozen=True)
class Plugin:
    """The entry points of one name in a group. It can be used if exactly one distribution registers the name."""

    group: str
    name: str
    entries: tuple[EntryPoint, ...]

    @property
    def origin(self) -> str:
        """The distribution and its version, as `acme-boxes 1.2`; all distributions if several use the name."""
        return " and ".join(sorted(map(_origin, self.entries)))

    @property
    def is_builtin(self) -> bool:
        """Whether it is part of Sandherd."""
        return all(map(_is_builtin, self.entries))

    @property
    def package(self) -> str:
        """The top-level package of the entry point."""
        return self.entries[0].module.partition(".")[0]

    @property
    def problem(self) -> str | None:
        """The reason why it can't be used, if that is known without importing it; else None."""
        if not re.fullmatch(SAFE_NAME_PATTERN, self.name):
            return f"{self.title}: the name is invalid; it has to match {SAFE_NAME_PATTERN}"
        if len(self.entries) > 1:
            return f"{self.title}: several distributions use this name; uninstall all but one"
        return None

    @property
    def title(self) -> str:
        """The plugin's kind, name and origin, for error messages."""
        return f"{_KINDS[self.group]} {self.name!r} of {self.origin}"

    def load(self) -> Any:
        """Import it, and return the object of the entry point. Raises `PluginError`."""
        if self.problem:
            raise PluginError(self.problem)
        try:
            return self.entries[0].load()
        except Exception as error:  # third-party code may raise anything when it is imported
            raise PluginError(f"{self.title} can't be imported: {type(error).__name__}: {error}") from error


def installed(group: str) -> dict[str, Plugin]:
    """All plugins of a group by name, also those that can't be used.

    No other distribution can replace Sandherd's own plugins.
    """
    return grouped(group, _entries(group, tuple(sys.path)))


@cache
def _entries(group: str, _search_path: tuple[str, ...]) -> EntryPoints:
    """Read once per process, so that a running process uses no plugin that is installed later."""
    return entry_points(group=group)


def grouped(group: str, entries: Iterable[EntryPoint]) -> dict[str, Plugin]:
    """All plugins of a group by name, from these entry points. Pure."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entries:
        found[entry.name].append(entry)
    return {
        name: Plugin(group, name, tuple(filter(_is_builtin, same)) or tuple(same))
        for name, same in sorted(found.items())
    }


def load_harness(plugin: Plugin) -> HarnessKind:
    """Load a harness. Raises `PluginError`, also if the object is not a `HarnessKind` with this name and a driver."""
    kind = plugin.load()
    if not isinstance(kind, HarnessKind):
        raise PluginError(f"{plugin.title}: expected a HarnessKind, found {type(kind).__name__}")
    if kind.name != plugin.name:
        raise PluginError(f"{plugin.title}: its options have the kind {kind.name!r}")
    if kind.driver is None and not plugin.is_builtin:
        raise PluginError(f"{plugin.title}: it has no driver")
    return kind


def unknown(names: Iterable[str], plugins: Mapping[str, Plugin]) -> str | None:
    """The error text if one of these runtimes is not installed here; else None."""
    missing = next((name for name in sorted(names) if name not in plugins), None)
    return None if missing is None else f"there is no runtime {missing!r}; installed here: {choice(plugins)}"


def choice(plugins: Mapping[str, Plugin]) -> str:
    """The names of plugins that can be used, for the error about another name."""
    return ", ".join(name for name, plugin in plugins.items() if plugin.problem is None)


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


def _is_builtin(entry: EntryPoint) -> bool:
    return entry.dist is not None and re.sub(r"[-_.]+", "-", entry.dist.name).lower() in _BUILTIN
