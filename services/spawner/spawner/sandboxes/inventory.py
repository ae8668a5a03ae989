"""Lists everything in all runtimes; an unavailable runtime does not prevent listing the others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandherd.telemetry import logs
from spawner.runtimes.contract import ObservedSandbox, Runtime, RuntimeFailedError
from spawner.sandboxes.runtime_calls import call_with_timeout

_log: Final = logs.get("inventory")


@dataclass(frozen=True)
class RuntimeInventory:
    """What exists in the runtimes: each unit with its runtime and observed state, and quarantined sandboxes."""

    units: dict[str, tuple[Runtime, ObservedSandbox]] = field(default_factory=dict)
    quarantined: dict[str, Runtime] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """The runtimes that did not respond: their sandboxes are unknown."""

    @property
    def sandboxes(self) -> list[ObservedSandbox]:
        """All observed sandboxes."""
        return [observed for _, observed in self.units.values()]


async def list_runtimes(runtimes: Mapping[str, Runtime], timeout: float) -> RuntimeInventory:
    """List each runtime, with a timeout in seconds for each call."""
    inventory = RuntimeInventory()
    for name, runtime in runtimes.items():
        try:
            found = await call_with_timeout(runtime.find_all(), timeout, f"runtime {name}")
            quarantined = await call_with_timeout(runtime.list_quarantined(), timeout, f"runtime {name}")
        except (RuntimeFailedError, OSError) as error:
            _log.warning("sandboxes of runtime not listed", runtime=name, error=str(error))
            inventory.silent.add(name)
            continue
        except Exception as error:  # noqa: BLE001  # one runtime's fault must not end the sweep of all
            _log.error("listing sandboxes of runtime failed", runtime=name, exc_info=error)
            inventory.silent.add(name)
            continue
        inventory.units.update({observed.unit: (runtime, observed) for observed in found})
        inventory.quarantined.update(dict.fromkeys(quarantined, runtime))
    return inventory
