"""The words of an agent's iterations: what it is told to go on with, and how it all ended."""

from textwrap import shorten
from typing import Final

from sandherd.contracts.continuous import Continuous, StopReason
from sandherd_worker.continuous.deciding import State
from sandherd_worker.continuous.validating import Found
from sandherd_worker.harnesses.base import Ended, FailureType
from sandherd_worker.sound import sound

_DONE: Final = frozenset({"validation_passed", "completion_signal"})
_LONGEST: Final = 16_000
_SHOWN: Final = 1000
"""How much of a command is shown to the agent, in characters."""


def first_prompt(text: str, terms: Continuous, feedback: str) -> str:
    """What an agent that stays is told at first: the task, and when it is done."""
    return "\n\n".join(part for part in (text, feedback, _when_done(terms)) if part)


def next_prompt(terms: Continuous, feedback: str) -> str:
    """What it is told for a further iteration."""
    return "\n\n".join(part for part in (feedback, "Go on with the task.", _when_done(terms)) if part)


def _when_done(terms: Continuous) -> str:
    check = terms.validation and f"Your work is checked with this command; it has to succeed:\n{_command(terms)}"
    claim = terms.completion_signal and f"When all of it is done, say exactly this: {terms.completion_signal}"
    return "\n\n".join(part for part in (check, claim) if part)


def not_valid(terms: Continuous, found: Found) -> str:
    """What the agent is told of a validation that failed."""
    return sound(f"The check of your work failed: {found.why}.\n$ {_command(terms)}\n{found.output}")


def _command(terms: Continuous) -> str:
    return "" if terms.validation is None else shorten(terms.validation.command, _SHOWN, placeholder=" …")


def failed(ended: Ended) -> str:
    """What the agent is told of an iteration that failed."""
    return sound(f"The iteration before failed: {ended.error}"[:_LONGEST])


def not_said() -> str:
    """What the agent is told if it has not said that it is done."""
    return "You have not said that the task is done."


def cut_short(terms: Continuous, reason: StopReason) -> str:
    """Why an iteration was stopped in its midst."""
    return f"it was stopped in its midst: {_limit(terms, reason)}"


def conclude(terms: Continuous, state: State, reason: StopReason, last: Ended) -> Ended:
    """How it all ended; `last` is how its last iteration did."""
    if reason in _DONE:
        return Ended(stop_reason=reason, validation_passed=state.valid)
    return Ended(
        error_type=_failure(reason, last),
        error=_why(terms, state, reason, last),
        stop_reason=reason,
        validation_passed=state.valid,
    )


def _failure(reason: StopReason, last: Ended) -> FailureType:
    if reason == "shutdown_signal":
        return "stopped"
    return (last.error_type or "internal") if reason == "consecutive_errors" else "limit_reached"


def _why(terms: Continuous, state: State, reason: StopReason, last: Ended) -> str:
    if reason == "consecutive_errors":
        return f"{state.errors_in_a_row} iterations in a row failed, the last one so: {last.error}"
    went = "iteration" if state.iteration == 1 else "iterations"
    return f"the work was not done after {state.iteration} {went}: {_limit(terms, reason)}"


def _limit(terms: Continuous, reason: StopReason) -> str:
    limits: dict[str, str] = {
        "max_iterations_reached": "there may be no more",
        "max_cost_reached": f"it may cost no more than {(terms.max_cost_micro_usd or 0) / 1e6:g} US dollars",
        "max_duration_reached": f"it may take no longer than {terms.max_duration_seconds} s",
        "shutdown_signal": "its worker was told to end",
    }
    return limits.get(reason, reason)
