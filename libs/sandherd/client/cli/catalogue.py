"""What can be asked for here, on the screen."""

from collections.abc import Mapping
from typing import Final

from sandherd.client.cli import printing
from sandherd.client.cli.options import Format
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import put
from sandherd.contracts.requests import Catalogue, Profile, RuntimeView
from sandherd.contracts.specs import Limits

RUNTIMES = (
    "RUNTIME",
    "DEFAULT",
    "ISOLATION",
    "HOST UID",
    "PAUSES",
    "MEMORY",
    "CORES",
    "PROCESSES",
    "DISK",
    "PORTS",
    "NETWORK",
    "SANDBOXES",
)
PROFILES = ("PROFILE", "RUNTIME", "LIMITS", "NETWORK", "WARM")
EXPOSED: Final[Mapping[str, str]] = {
    "internet": "public addresses, the broker and declared endpoints; not this host, private or metadata addresses",
    "allow": "the listed public hosts, the broker and declared endpoints",
    "none": "the broker and declared endpoints",
    "host": "all that the spawner's host reaches: its loopback services, private networks, cloud metadata",
}
"""What a sandbox reaches, by the mode of its network."""


async def show(herd: Herd, output: Format) -> int:
    """Ask for it, and show it."""
    found = await herd.catalogue()
    if output is Format.JSON:
        printing.document(found)
    else:
        print_catalogue(found)
    return 0


def print_catalogue(found: Catalogue) -> None:
    """Print it as tables and lines."""
    printing.table(RUNTIMES, [_row(one) for one in found.runtimes])
    for one in found.runtimes:
        for gap in one.gaps:
            put(f"\n{one.runtime}: {gap}")
    if found.profiles:
        put()
        kinds = sorted(found.profiles.items())
        printing.table(
            PROFILES, [[name, one.runtime, _limits(one.limits), _network(one), one.warm] for name, one in kinds]
        )
    put()
    printing.facts(
        {
            **{f"network {mode}": EXPOSED[mode] for mode in _modes(found)},
            "harnesses": ", ".join(found.harnesses),
            "usual": _limits(found.defaults),
            "at the most": _limits(found.caps),
            "attempts at the most": found.max_attempts,
            "time to live at the most": f"{found.max_ttl_seconds} s",
            "file at the most": f"{found.max_file_bytes} bytes",
        }
    )


def _row(one: RuntimeView) -> list[object]:
    held = [one.memory, one.cores, one.processes, one.disk or None]
    kept_apart = [one.isolation, one.host_uid or None]
    reached = [one.ports, one.network or None]
    return [one.runtime, one.default, *kept_apart, one.can_pause, *held, *reached, one.limit]


def _network(profile: Profile) -> str | None:
    return profile.network.mode if profile.network else None


def _modes(found: Catalogue) -> list[str]:
    used = {one.network for one in found.runtimes} | {_network(one) for one in found.profiles.values()}
    return [mode for mode in EXPOSED if mode in used]


def _limits(limits: Limits | None) -> str | None:
    if limits is None:
        return None
    cores = "" if limits.cores is None else f"{limits.cores:g} cores, "
    return (
        f"{limits.memory_mb} MB, {cores}{limits.cpu_seconds} s of CPU, "
        f"{limits.processes} processes, {limits.open_files} open files"
    )
