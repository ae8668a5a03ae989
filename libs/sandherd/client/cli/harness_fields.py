"""A harness as a command line says it."""

import json
from collections.abc import Sequence
from typing import Any

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import HARNESSES


def harness(
    kind: str,
    argv: Sequence[str],
    model: str | None = None,
    *,
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> dict[str, Any]:
    """The harness as the options mean it. Raises `HerdError` for what this kind has not, or lacks."""
    if kind not in HARNESSES:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"there is no harness {kind[:60]!r}; there is: {', '.join(HARNESSES)}",
            field="harness",
            remedy="name another one with --harness",
        )
    has = HARNESSES[kind].model_fields
    said = _fields(fields)
    if "argv" in has and not argv and "script" not in said:
        remedy = 'put it after --, as in `sandherd run "TASK" -- python3 agent.py`'
        raise HerdError.of(Code.INVALID_FIELD, "no program is named", field="argv", remedy=remedy)
    given = {"argv": list(argv) or None, "model": model, "approvals": _approvals(said.get("approvals"), ask, deny)}
    given = said | {name: value for name, value in given.items() if value is not None}
    for name in given.keys() - (has.keys() - {"kind"}):
        raise HerdError.of(
            Code.INVALID_FIELD, f"{kind} takes no {name}", field=name, remedy="leave it out, or name another --harness"
        )
    return {"kind": kind, **given}


def _approvals(said: Any, ask: Sequence[str], deny: Sequence[str]) -> dict[str, Any] | None:
    """What `--ask` and `--deny` mean, beside what `--set approvals=…` says; None if nothing is said."""
    verdicts = dict.fromkeys(ask, "ask") | dict.fromkeys(deny, "deny")
    if not verdicts:
        return None
    rest = said if isinstance(said, dict) else {}
    return {**rest, "tools": {**rest.get("tools", {}), **verdicts}}


def _fields(said: Sequence[str]) -> dict[str, Any]:
    """Each value is JSON where it can be read as that, else a text. Raises `HerdError`."""
    found: dict[str, Any] = {}
    for item in said:
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
