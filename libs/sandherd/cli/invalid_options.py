"""Describes an invalid field by its option, with the permitted values as a user types them."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from sandherd.client.errors import HerdError, InvalidFieldError
from sandherd.contracts.durations import duration_text
from sandherd.contracts.violations import permitted, sentence

_MIB_PER_GIB: Final = 1024
_MICRO_USD_PER_DOLLAR: Final = 1_000_000
Form = Callable[[float], str]
"""Writes a number as a user types it."""


def _memory_text(mib: float) -> str:
    return f"{mib:g}m" if mib % _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:g}g"


def _dollars_text(micro: float) -> str:
    return f"{micro / _MICRO_USD_PER_DOLLAR:.6f}".rstrip("0").rstrip(".")


def _number_text(value: float) -> str:
    return f"{value:.12g}"


_OPTIONS: Final[Mapping[str, tuple[str, Form]]] = {
    "attempt_seconds": ("--attempt-timeout", duration_text),
    "content": ("TEXT", _number_text),
    "continuous.max_cost_micro_usd": ("--max-cost", _dollars_text),
    "continuous.max_duration_seconds": ("--max-duration", duration_text),
    "continuous.validation.timeout_seconds": ("--check-timeout", duration_text),
    "cores": ("--cores", _number_text),
    "cwd": ("--cwd", _number_text),
    "defaults.attempt_seconds": ("--attempt-timeout", duration_text),
    "defaults.cores": ("--cores", _number_text),
    "defaults.harness": ("--harness", _number_text),
    "defaults.image": ("--image", _number_text),
    "defaults.memory_mb": ("--memory", _memory_text),
    "defaults.model": ("--model", _number_text),
    "grant": ("LIMITS", _number_text),
    "lifetime_seconds": ("--expires", duration_text),
    "limits.day": ("--day", _number_text),
    "limits.month": ("--month", _number_text),
    "limits.sandboxes": ("--sandboxes", _number_text),
    "limits.tasks": ("--tasks", _number_text),
    "linger_seconds": ("--linger", duration_text),
    "memory_mb": ("--memory", _memory_text),
    "retry.max_attempts": ("--attempts", _number_text),
    "schedule.catch_up_seconds": ("--catch-up", duration_text),
    "schedule.cron": ("--cron", _number_text),
    "schedule.time_zone": ("--time-zone", _number_text),
    "seconds": ("TIME", duration_text),
    "task_seconds": ("--task-timeout", duration_text),
    "text": ("TEXT", _number_text),
    "timeout_seconds": ("--timeout", duration_text),
    "ttl_seconds": ("--ttl", duration_text),
    "unset": ("--unset", _number_text),
}
"""The option or argument of each field that a user can set, and the function that writes its numbers as typed."""
_ITEM_INDEX: Final = re.compile(r"\.\d+$")
"""The index at the end of the name of a list item's field."""


def describe_invalid_option(error: InvalidFieldError) -> str | None:
    """A sentence about the option of an invalid field; None if the field has no option."""
    field = error.problem.field or ""
    option, form = _OPTIONS.get(_ITEM_INDEX.sub("", field), (None, _number_text))
    if option is None:
        return None
    violation = error.violation
    if violation.is_number:
        limits = (None if limit is None else form(limit) for limit in (violation.minimum, violation.maximum))
        return f"{option} has to be {permitted(*limits)}"
    text = sentence(violation)
    if text is not None:
        return f"{option} {text}"
    reason = error.problem.message.removeprefix(f"{field}: ")
    return f"{option} {reason.removeprefix('it ')}" if reason.startswith("it ") else f"{option}: {reason}"


def with_option_names(error: HerdError) -> HerdError:
    """The error. If its remedy is to change the field, the remedy names the option instead."""
    field, remedy = error.problem.field or "", error.problem.remedy or ""
    option, _ = _OPTIONS.get(field.removeprefix("spec."), (None, _number_text))
    phrase = re.match(rf"change ({re.escape(field)}|{re.escape(field.rpartition('.')[2])})\b", remedy)
    if option is None or phrase is None:
        return error
    return HerdError(error.problem.model_copy(update={"remedy": f"change {option}{remedy[phrase.end() :]}"}))
