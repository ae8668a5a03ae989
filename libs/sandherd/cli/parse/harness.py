"""Parses a harness from command-line options."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import HARNESSES, PROJECT_DEFAULT


def harness(
    kind: str | None,
    argv: Sequence[str],
    model: str | None = None,
    *,
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> dict[str, Any]:
    """The harness from the options. Raises `HerdError` for fields that this kind does not have, or that are missing.

    Without a kind it is a command if there is a program, else the project's default.

    A kind that is not ours is a plugin's: only the spawner knows its fields, and this adds none that were not given.
    """
    values = _fields(fields)
    options = {"argv": list(argv) or None, "model": model, "approvals": _approvals(values.get("approvals"), ask, deny)}
    values |= {name: value for name, value in options.items() if value is not None}
    if kind is None:
        kind = "command" if values.keys() & {"argv", "script"} else PROJECT_DEFAULT
    if kind in HARNESSES:
        _check_fields(kind, values)
    return {"kind": kind, **values}


def _check_fields(kind: str, values: Mapping[str, Any]) -> None:
    has = HARNESSES[kind].model_fields
    if "argv" in has and "argv" not in values and "script" not in values:
        remedy = 'put it after --, as in `sandherd run "TASK" -- python3 agent.py`'
        raise HerdError.of(Code.INVALID_FIELD, "no program is given", field="argv", remedy=remedy)
    for name in values.keys() - (has.keys() - {"kind"}):
        raise HerdError.of(
            Code.INVALID_FIELD, f"{kind} takes no {name}", field=name, remedy="omit it, or name another --harness"
        )


def _approvals(fields: Any, ask: Sequence[str], deny: Sequence[str]) -> dict[str, Any] | None:
    """The approvals from `--ask` and `--deny`, merged into `--set approvals=…`; None without `--ask` and `--deny`."""
    verdicts = dict.fromkeys(ask, "ask") | dict.fromkeys(deny, "deny")
    if not verdicts:
        return None
    rest = fields if isinstance(fields, dict) else {}
    return {**rest, "tools": {**rest.get("tools", {}), **verdicts}}


def _fields(assignments: Sequence[str]) -> dict[str, Any]:
    """Each value is parsed as JSON if possible, else taken as text. Raises `HerdError`."""
    found: dict[str, Any] = {}
    for item in assignments:
        name, equals, value = item.partition("=")
        if not equals:
            raise HerdError.of(
                Code.INVALID_FIELD, f"--set {item[:60]!r} has no value", field="set", remedy="write it as FIELD=VALUE"
            )
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
