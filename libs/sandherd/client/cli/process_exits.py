"""Processes of the stack on this machine that were ended by an exhausted resource, from what its supervisor records."""

import json
from pathlib import Path
from typing import Any, Final

from sandherd.client.cli.checks import Check, State

_STATE: Final = Path("run") / "state.json"
_REMEDY: Final = "it was started again; give this machine more memory, or run fewer sandboxes at once"


def check_exits(home: Path) -> list[Check]:
    """A check for each such process. Nothing where no stack has its home."""
    try:
        record: dict[str, Any] = json.loads((home / _STATE).read_text())
    except (OSError, ValueError):
        return []
    problems = {name: process.get("problem") for name, process in record.get("processes", {}).items()}
    return [Check(f"process {name}", State.WORTH_A_LOOK, found, _REMEDY) for name, found in problems.items() if found]
