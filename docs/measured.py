"""Stores the results of `make bench` for docs/sizing.md: the median of each figure with its date, and the machine."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
STORED: Final = ROOT / "docs" / "measured.json"
RESULTS: Final = ROOT / "build" / "bench.json"
WANTED: Final = ("idle.", "room.", "ingest.throughput", "ingest.latency_", "worker.memory", "worker.events")
ALSO: Final = (
    *("spawn.start", "queue.throughput", "message.delivery"),
    *("monitor.decision", "monitor.takeover", "monitor.memory"),
)
RATIOS: Final = ("monitor.rate", "monitor.fold", "monitor.cost")
"""Figures whose ratio to their baseline is shown."""


def updated(before: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of the page. New measurements replace earlier ones. The machine is that of the newest measurement."""
    figures = {
        name: {"value": value(one), "unit": one["unit"], "on": group["measured_at"][:10]}
        for group in groups.values()
        for name, one in group["figures"].items()
        if name.startswith(WANTED) or name in ALSO
    }
    ratios = {
        name: {
            "value": rounded(one["parts"]["value"]["ratio"]["median"]), "unit": "1", "on": group["measured_at"][:10]
        }
        for group in groups.values()
        for name, one in group["figures"].items()
        if name in RATIOS
    }  # fmt: skip
    newest = max(groups.values(), key=lambda group: str(group["measured_at"]))
    known = {**before.get("figures", {}), **figures, **ratios}
    return {"machine": newest["machine"], "figures": dict(sorted(known.items()))}


def value(figure: Mapping[str, Any]) -> Any:
    """The medians of a figure's parts, or the median itself if it has only one part."""
    medians = {part: rounded(found["median"]) for part, found in figure["parts"].items()}
    return medians["value"] if medians.keys() == {"value"} else medians


def rounded(number: float) -> float:
    """The number, rounded to a whole number from 100 on, and to two decimals below."""
    return round(number) if abs(number) >= 100 else round(number, 2)


def main() -> int:
    """Store the results in build/bench.json; returns the exit status."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not results.get("groups"):
        print("there are no results: run `make bench` first", file=sys.stderr)
        return 1
    before = json.loads(STORED.read_text()) if STORED.exists() else {}
    STORED.write_text(json.dumps(updated(before, results["groups"]), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
