"""Describes an invalid field as the option it was given by, with what is permitted as one would type it."""

from collections.abc import Callable, Mapping
from typing import Final

from sandherd.client.errors import InvalidFieldError
from sandherd.contracts.durations import duration_text
from sandherd.contracts.violations import permitted, sentence

_MIB_PER_GIB: Final = 1024
_MICRO: Final = 1_000_000
Form = Callable[[float], str]


def _memory(mib: float) -> str:
    return f"{mib:g}m" if mib % _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:g}g"


def _dollars(micro: float) -> str:
    return f"{micro / _MICRO:.6f}".rstrip("0").rstrip(".")


def _number(value: float) -> str:
    return f"{value:g}"


_OPTIONS: Final[Mapping[str, tuple[str, Form]]] = {
    "attempt_seconds": ("--attempt-timeout", duration_text),
    "content": ("TEXT", _number),
    "continuous.max_cost_micro_usd": ("--max-cost", _dollars),
    "continuous.max_duration_seconds": ("--max-duration", duration_text),
    "continuous.validation.timeout_seconds": ("--check-timeout", duration_text),
    "cores": ("--cores", _number),
    "cwd": ("--cwd", _number),
    "linger_seconds": ("--linger", duration_text),
    "memory_mb": ("--memory", _memory),
    "retry.max_attempts": ("--attempts", _number),
    "seconds": ("TIME", duration_text),
    "schedule.cron": ("--cron", _number),
    "task_seconds": ("--task-timeout", duration_text),
    "text": ("TEXT", _number),
    "timeout_seconds": ("--timeout", duration_text),
    "ttl_seconds": ("--ttl", duration_text),
}
"""The option or argument of each field that one can give, and how its numbers are written there."""


def describe_invalid_option(error: InvalidFieldError) -> str | None:
    """A sentence about the option; None if the field has none, or the error is not a usual one."""
    option, form = _OPTIONS.get(error.problem.field or "", (None, _number))
    if option is None:
        return None
    violation = error.violation
    if violation.is_number:
        limits = (None if limit is None else form(limit) for limit in (violation.minimum, violation.maximum))
        return f"{option} has to be {permitted(*limits)}"
    text = sentence(violation)
    return None if text is None else f"{option} {text}"
