"""What can be asked for here, on the screen."""

from sandherd.client.cli import printing
from sandherd.client.cli.options import Format
from sandherd.client.herd import Herd
from sandherd.contracts.requests import Catalogue, RuntimeView
from sandherd.contracts.specs import Limits

RUNTIMES = ("RUNTIME", "DEFAULT", "ISOLATION", "PAUSES", "MEMORY", "CORES", "PROCESSES", "PORTS", "SANDBOXES")
PROFILES = ("PROFILE", "RUNTIME", "LIMITS", "WARM")


async def show(herd: Herd, output: Format) -> int:
    """Ask for it, and show it."""
    found = await herd.catalogue()
    if output is Format.JSON:
        printing.document(found)
    else:
        _print(found)
    return 0


def _print(found: Catalogue) -> None:
    printing.table(RUNTIMES, [_row(one) for one in found.runtimes])
    if found.profiles:
        print()
        kinds = sorted(found.profiles.items())
        printing.table(PROFILES, [[name, one.runtime, _limits(one.limits), one.warm] for name, one in kinds])
    print()
    printing.facts(
        {
            "harnesses": ", ".join(found.harnesses),
            "usual": _limits(found.defaults),
            "at the most": _limits(found.caps),
            "attempts at the most": found.max_attempts,
            "time to live at the most": f"{found.max_ttl_seconds} s",
            "file at the most": f"{found.max_file_bytes} bytes",
        }
    )


def _row(one: RuntimeView) -> list[object]:
    held = [one.memory, one.cores, one.processes]
    return [one.runtime, one.default, one.isolation, one.can_pause, *held, one.ports, one.limit]


def _limits(limits: Limits | None) -> str | None:
    if limits is None:
        return None
    cores = "" if limits.cores is None else f"{limits.cores:g} cores, "
    return (
        f"{limits.memory_mb} MB, {cores}{limits.cpu_seconds} s of CPU, "
        f"{limits.processes} processes, {limits.open_files} open files"
    )
