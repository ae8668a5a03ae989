"""A look at everything that the runtimes have; one that does not answer keeps no other from being looked at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandherd.telemetry import logs
from spawner.runtimes.contract import Runtime, RuntimeFailedError, Seen
from spawner.sandboxes.runtimes import answered

_log: Final = logs.get("looking")


@dataclass(frozen=True)
class There:
    """What is there: each unit with the runtime that has it, and what was put aside."""

    units: dict[str, tuple[Runtime, Seen]] = field(default_factory=dict)
    kept: dict[str, Runtime] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """The runtimes that did not answer: what they have is not known."""

    @property
    def seen(self) -> list[Seen]:
        """All of it."""
        return [seen for _, seen in self.units.values()]


async def look_at_all(runtimes: Mapping[str, Runtime], timeout: float) -> There:
    """Ask each runtime what it has, `timeout` seconds at the most."""
    there = There()
    for name, runtime in runtimes.items():
        try:
            found = await answered(runtime.find_all(), timeout, f"runtime {name}")
            kept = await answered(runtime.find_kept(), timeout, f"runtime {name}")
        except (RuntimeFailedError, OSError) as error:
            _log.warning("what a runtime has is not known", runtime=name, error=str(error))
            there.silent.add(name)
            continue
        except Exception as error:  # noqa: BLE001  # one runtime's fault must not end the sweep of all
            _log.error("what a runtime has can't be understood", runtime=name, exc_info=error)
            there.silent.add(name)
            continue
        there.units.update({seen.unit: (runtime, seen) for seen in found})
        there.kept.update(dict.fromkeys(kept, runtime))
    return there
