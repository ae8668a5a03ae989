"""Options of iterations: when an agent has completed its task, and when it stops without success."""

from typing import Annotated, Any, Final

import typer

_MICRO_USD_PER_DOLLAR: Final = 1_000_000

Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="COMMAND", help="Repeat until this shell command, run after each iteration, succeeds."
    ),
]
UntilSaid = Annotated[
    str | None,
    typer.Option(
        "--until-said",
        metavar="WORDS",
        help="Repeat until the agent writes these words. With --until, its command runs only then.",
    ),
]
CheckTimeout = Annotated[
    str | None,
    typer.Option("--check-timeout", metavar="TIME", help="Time limit of the command of --until: 90s, 10m."),
]
MaxIterations = Annotated[
    int | None, typer.Option("--max-iterations", metavar="N", help="Maximum number of iterations (10).", min=1)
]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", metavar="DOLLARS", help="Cost limit of all iterations together.", min=0)
]
MaxDuration = Annotated[
    str | None,
    typer.Option("--max-duration", metavar="TIME", help="Time limit of all iterations together: 90s, 10m, 2h."),
]
MaxErrors = Annotated[
    int | None,
    typer.Option("--max-errors", metavar="N", help="Maximum number of failed iterations in a row (3).", min=1),
]


def continuous(
    *,
    until: str | None,
    until_said: str | None,
    check_timeout: str | None,
    iterations: int | None,
    cost: float | None,
    duration: str | None,
    errors: int | None,
) -> dict[str, Any] | None:
    """The field `continuous` of a task spec; None without options. Raises `HerdError` without an end condition."""
    from sandherd.cli.parse.units import seconds

    validation = {
        "command": until,
        "timeout_seconds": None if check_timeout is None else seconds(check_timeout, "--check-timeout"),
    }
    limits = {
        "completion_signal": until_said,
        "max_iterations": iterations,
        "max_cost_micro_usd": None if cost is None else round(cost * _MICRO_USD_PER_DOLLAR),
        "max_duration_seconds": None if duration is None else seconds(duration, "--max-duration"),
        "max_consecutive_errors": errors,
    }
    fields = (
        {"validation": _without_none(validation), **_without_none(limits)}
        if until is not None
        else _without_none(limits)
    )
    if (fields or check_timeout is not None) and until is None and until_said is None:
        raise _no_end_condition()
    return fields or None


def _no_end_condition() -> Exception:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    remedy = 'add --until "make test", --until-said DONE, or both'
    return HerdError.of(Code.INVALID_FIELD, "iterations need an end condition", field="continuous", remedy=remedy)


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
