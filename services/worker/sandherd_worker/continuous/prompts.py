"""The texts of iterations: the prompts for the agent, and the reasons for the end."""

from textwrap import shorten
from typing import Final

from sandherd.contracts.continuous import Continuous, StopReason
from sandherd_worker.continuous.iteration_rules import IterationState
from sandherd_worker.continuous.validation import ValidationResult
from sandherd_worker.harnesses.base import AgentEnd, FailureType
from sandherd_worker.storable_text import valid_text

_DONE: Final = frozenset({"validation_passed", "completion_signal"})
_MAX_FEEDBACK_CHARS: Final = 16_000
_MAX_COMMAND_CHARS: Final = 1000
"""Maximum number of characters of the validation command in a prompt."""


def first_prompt(text: str, terms: Continuous, feedback: str) -> str:
    """The first prompt of a run: the task, the feedback on the last iteration, and the conditions of its completion."""
    return "\n\n".join(part for part in (text, feedback, _completion_text(terms)) if part)


def next_prompt(terms: Continuous, feedback: str) -> str:
    """The prompt for a further iteration of an agent that still runs."""
    return "\n\n".join(part for part in (feedback, "Continue with the task.", _completion_text(terms)) if part)


def _completion_text(terms: Continuous) -> str:
    check = terms.validation and f"Your work is checked with this command; it has to succeed:\n{_command(terms)}"
    claim = terms.completion_signal and f"When all of it is done, say exactly this: {terms.completion_signal}"
    return "\n\n".join(part for part in (check, claim) if part)


def not_valid(terms: Continuous, result: ValidationResult) -> str:
    """The feedback for a validation that failed."""
    return valid_text(f"The check of your work failed: {result.why}.\n$ {_command(terms)}\n{result.output}")


def _command(terms: Continuous) -> str:
    return "" if terms.validation is None else shorten(terms.validation.command, _MAX_COMMAND_CHARS, placeholder=" …")


def failed(ended: AgentEnd) -> str:
    """The feedback for an iteration that failed."""
    return valid_text(f"The previous iteration failed: {ended.error}"[:_MAX_FEEDBACK_CHARS])


def missing_signal() -> str:
    """The feedback if the agent has not sent the completion signal."""
    return "You have not said that the task is done."


def cut_short(terms: Continuous, reason: StopReason) -> str:
    """Why an iteration was stopped before its end."""
    return f"it was stopped before its end: {_limit(terms, reason)}"


def conclude(terms: Continuous, state: IterationState, reason: StopReason, last: AgentEnd) -> AgentEnd:
    """The end of all iterations. `last`: the end of the last iteration."""
    if reason in _DONE:
        return AgentEnd(stop_reason=reason, validation_passed=state.valid)
    return AgentEnd(
        error_type=_failure(reason, last),
        error=_why(terms, state, reason, last),
        stop_reason=reason,
        validation_passed=state.valid,
    )


def _failure(reason: StopReason, last: AgentEnd) -> FailureType:
    if reason == "shutdown_signal":
        return "stopped"
    return (last.error_type or "internal") if reason == "consecutive_errors" else "limit_reached"


def _why(terms: Continuous, state: IterationState, reason: StopReason, last: AgentEnd) -> str:
    if reason == "consecutive_errors":
        return f"{state.errors_in_a_row} consecutive iterations failed, the last one with: {last.error}"
    noun = "iteration" if state.iteration == 1 else "iterations"
    return f"the work was not completed after {state.iteration} {noun}: {_limit(terms, reason)}"


def _limit(terms: Continuous, reason: StopReason) -> str:
    limits: dict[str, str] = {
        "max_iterations_reached": "the maximum number of iterations is reached",
        "max_cost_reached": f"the cost limit of {(terms.max_cost_micro_usd or 0) / 1e6:g} US dollars is reached",
        "max_duration_reached": f"the time limit of {terms.max_duration_seconds} s is reached",
        "shutdown_signal": "its worker was asked to end",
    }
    return limits.get(reason, reason)
