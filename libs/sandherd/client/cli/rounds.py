"""Going round, as a command line says it: when an agent has done its task, and when it is given up."""

from typing import Annotated, Any, Final

import typer

_DOLLAR: Final = 1_000_000

Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="COMMAND", help="Go round until this shell command, run after each iteration, succeeds."
    ),
]
UntilSaid = Annotated[
    str | None,
    typer.Option("--until-said", metavar="WORDS", help="Go round until the agent says this; with --until: then check."),
]
CheckTimeout = Annotated[
    str | None,
    typer.Option("--check-timeout", metavar="TIME", help="How long the command of --until may take: 90s, 10m."),
]
MaxIterations = Annotated[
    int | None, typer.Option("--max-iterations", metavar="N", help="How often it goes round at the most (10).", min=1)
]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", metavar="DOLLARS", help="What all iterations may cost together.", min=0)
]
MaxDuration = Annotated[
    str | None, typer.Option("--max-duration", metavar="TIME", help="How long all iterations may take: 90s, 10m, 2h.")
]
MaxErrors = Annotated[
    int | None, typer.Option("--max-errors", metavar="N", help="How many iterations in a row may fail (3).", min=1)
]


def rounds(
    *,
    until: str | None,
    until_said: str | None,
    check_timeout: str | None,
    iterations: int | None,
    cost: float | None,
    duration: str | None,
    errors: int | None,
) -> dict[str, Any] | None:
    """What these options mean in a task; None if none is given. Raises `HerdError` for a limit of nothing."""
    from sandherd.client.cli.durations import seconds

    validation = {
        "command": until,
        "timeout_seconds": None if check_timeout is None else seconds(check_timeout, "--check-timeout"),
    }
    given = {
        "completion_signal": until_said,
        "max_iterations": iterations,
        "max_cost_micro_usd": None if cost is None else round(cost * _DOLLAR),
        "max_duration_seconds": None if duration is None else seconds(duration, "--max-duration"),
        "max_consecutive_errors": errors,
    }
    found = {"validation": _given(validation), **_given(given)} if until is not None else _given(given)
    if (found or check_timeout is not None) and until is None and until_said is None:
        raise _endless()
    return found or None


def _endless() -> Exception:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    remedy = 'say --until "make test", --until-said DONE, or both'
    return HerdError.of(Code.INVALID_FIELD, "nothing says until when it goes round", field="continuous", remedy=remedy)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
