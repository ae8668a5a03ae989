"""The options of `python -m tests.bench`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bench.catalog import Group
from tests.bench.figures import FEWEST_RUNS

ROOT: Final = Path(__file__).parent.parent.parent
RESULT: Final = ROOT / "build" / "bench.json"


def parse(arguments: Sequence[str] | None, groups: Sequence[Group]) -> argparse.Namespace:
    """Parse the options. Exits with 2 if they are wrong, and with 0 after `--help`."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure each figure beside its baseline, several times. `make bench` does the same.",
        epilog="Exit status: 0; 1 if a group failed; 2 for a wrong option or file; 3 with --fail-if-worse; "
        "128 + the number of the signal if it was interrupted.",
    )
    _add(parser, ", ".join(group.name for group in groups))
    given = parser.parse_args(arguments)
    if given.fail_if_worse is not None and given.against is None:
        parser.error("--fail-if-worse needs --against")
    return given


def _add(parser: argparse.ArgumentParser, groups: str) -> None:
    add = parser.add_argument
    add("--only", metavar="GROUPS", help=f"measure these groups, separated by commas; all: {groups}")
    add("--list", action="store_true", help="list the groups with their figures, and measure nothing")
    add("--show", action="store_true", help="show the stored results, and measure nothing")
    add("--runs", type=_runs, metavar="N", default=FEWEST_RUNS, help="runs of each figure (default: %(default)s)")
    add("--against", type=Path, metavar="FILE", help="compare with the results in FILE, an earlier build/bench.json")
    worse = "exit with 3 if a figure is worse than before by more than PERCENT and by more than the spreads"
    add("--fail-if-worse", type=float, metavar="PERCENT", help=worse)
    result = "where results are stored (default: build/bench.json); the log is beside it"
    add("--result", type=Path, metavar="FILE", default=_shortest(RESULT), help=result)


def _shortest(path: Path) -> Path:
    """The path relative to the working directory, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _runs(text: str) -> int:
    if (runs := int(text)) < FEWEST_RUNS:
        raise argparse.ArgumentTypeError(f"at least {FEWEST_RUNS} are needed for a spread")
    return runs
