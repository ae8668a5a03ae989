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
    """The harness from the options. Raises `HerdError` for missing fields, and for fields that the kind does not have.

    If `kind` is None, it is `command` if a program is given, else the project's default.

    An unknown kind may be a plugin's. Its fields are not checked here, because only the spawner knows them.
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
    fields = HARNESSES[kind].model_fields
    if "argv" in fields and "argv" not in values and "script" not in values:
        remedy = 'put it after --, as in `sandherd run "TASK" -- python3 agent.py`'
        raise HerdError.of(Code.INVALID_FIELD, "no program is given", field="argv", remedy=remedy)
    for name in values.keys() - (fields.keys() - {"kind"}):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"harness {kind} has no field {name}",
            field=name,
            remedy="omit it, or name another --harness",
        )


def _approvals(approvals: Any, ask: Sequence[str], deny: Sequence[str]) -> dict[str, Any] | None:
    """The approvals of `--ask` and `--deny`, merged into those of `--set approvals=…`; None without them."""
    verdicts = dict.fromkeys(ask, "ask") | dict.fromkeys(deny, "deny")
    if not verdicts:
        return None
    other_fields = approvals if isinstance(approvals, dict) else {}
    return {**other_fields, "tools": {**other_fields.get("tools", {}), **verdicts}}


def _fields(assignments: Sequence[str]) -> dict[str, Any]:
    """The fields from `FIELD=VALUE`. A value that is not valid JSON is a text. Raises `HerdError` without a `=`."""
    fields: dict[str, Any] = {}
    for item in assignments:
        name, equals, value = item.partition("=")
        if not equals:
            raise HerdError.of(
                Code.INVALID_FIELD, f"--set {item[:60]!r} has no value", field="set", remedy="write it as FIELD=VALUE"
            )
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields
