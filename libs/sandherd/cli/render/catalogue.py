"""Shows the available runtimes, profiles, harnesses and limits."""

from collections.abc import Mapping
from typing import Final

from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.sizes import MIB, binary_size
from sandherd.cli.render.table import Column
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_text
from sandherd.contracts.durations import duration_text
from sandherd.contracts.requests import Catalogue, Profile, RuntimeView
from sandherd.contracts.specs import SandboxLimits
from sandherd.plurals import pluralize

RUNTIMES = (
    "RUNTIME",
    "DEFAULT",
    "ISOLATION",
    Column("HOST UID", 7),
    Column("PAUSES", 1),
    Column("MEMORY", 2, whole=True),
    Column("CORES", 3, whole=True),
    Column("PROCESSES", 5, whole=True),
    Column("DISK", 4, whole=True),
    Column("PORTS", 6),
    "NETWORK",
    Column("START", 8),
    "SANDBOXES",
)
PROFILES = ("PROFILE", "RUNTIME", "NETWORK", "WARM", Column("LIMITS", below=True))
REACHABLE: Final[Mapping[str, str]] = {
    "internet": "public addresses, the broker and declared endpoints; not the host, private or metadata addresses",
    "allow": "the listed public hosts, the broker and declared endpoints",
    "none": "the broker and declared endpoints",
    "host": "everything that the spawner's host can reach: its loopback services, private networks, cloud metadata",
}
"""The addresses that a sandbox can reach, by its network mode."""


async def show(herd: Herd, output: Format) -> int:
    """Request the catalogue, and show it."""
    catalogue = await herd.catalogue()
    if output.is_json:
        console.print_document(output, catalogue)
    elif output is Format.NAME:
        for view in catalogue.runtimes:
            write_text(view.runtime)
    else:
        print_catalogue(catalogue, wide=output is Format.WIDE)
    return 0


def print_catalogue(catalogue: Catalogue, *, wide: bool = False) -> None:
    """Print the catalogue as tables and lines."""
    console.print_table(RUNTIMES, [_row(view) for view in catalogue.runtimes], wide=wide)
    for view in catalogue.runtimes:
        if view.plugin:
            write_text(f"\n{view.runtime}: a plugin, from {view.plugin}")
        for gap in view.gaps:
            write_text(f"\n{view.runtime}: {gap}")
    if catalogue.profiles:
        write_text()
        profiles = sorted(catalogue.profiles.items())
        console.print_table(
            PROFILES,
            [
                [name, profile.runtime, _network_mode(profile), profile.warm, _limits_text(profile.limits)]
                for name, profile in profiles
            ],
            wide=wide,
        )
    write_text()
    console.print_facts(
        {
            **{f"network {mode}": REACHABLE[mode] for mode in _network_modes(catalogue)},
            "harnesses": ", ".join(catalogue.harnesses),
            "default limits": _limits_text(catalogue.defaults),
            "maximum limits": _limits_text(catalogue.caps),
            "maximum attempts": catalogue.max_attempts,
            "maximum time to live": duration_text(catalogue.max_ttl_seconds),
            "maximum file size": binary_size(catalogue.max_file_bytes),
        }
    )


def _row(runtime: RuntimeView) -> list[object]:
    resources = [runtime.memory, runtime.cores, runtime.processes, runtime.disk or None]
    isolation_cells = [runtime.isolation, runtime.host_uid or None]
    network_cells = [runtime.ports, runtime.network or None]
    return [
        runtime.runtime,
        runtime.default,
        *isolation_cells,
        runtime.can_pause,
        *resources,
        *network_cells,
        runtime.worker_start or None,
        runtime.limit,
    ]


def _network_mode(profile: Profile) -> str | None:
    return profile.network.mode if profile.network else None


def _network_modes(catalogue: Catalogue) -> list[str]:
    used_modes = {view.network for view in catalogue.runtimes} | {
        _network_mode(view) for view in catalogue.profiles.values()
    }
    return [mode for mode in REACHABLE if mode in used_modes]


def _limits_text(limits: SandboxLimits | None) -> str | None:
    if limits is None:
        return None
    cores = "" if limits.cores is None else f"{limits.cores:g} {'core' if limits.cores == 1 else 'cores'}, "
    return (
        f"{binary_size(limits.memory_mb * MIB)}, {cores}{duration_text(limits.cpu_seconds)} of CPU time, "
        f"{pluralize(limits.processes, 'process', 'processes')}, {pluralize(limits.open_files, 'open file')}"
    )
