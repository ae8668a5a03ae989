"""The iteration family: an agent that goes round until its work is valid."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.agent import AgentEvent
from sandherd.contracts.quantities import Count, MicroDollars, Seconds


class Iteration(AgentEvent):
    """The state that every event of the family carries."""

    iteration_num: Count
    successful_iterations: Count = 0
    error_count: Count = 0
    total_cost_micro_usd: MicroDollars = 0
    completion_signal_count: Count = 0
    elapsed_seconds: Seconds = 0
    last_session_id: str | None = None
    validation_passed: bool | None = None
    tests_passed: bool | None = None
    code_committed: bool | None = None
    code_pushed: bool | None = None


class AgentIterationStarted(Iteration):
    """A round begins."""

    type: ClassVar[str] = "agent.iteration_started"
    prompt_preview: str | None = None


class AgentIterationCompleted(Iteration):
    """A round is done."""

    type: ClassVar[str] = "agent.iteration_completed"
    cost_micro_usd: MicroDollars = 0
    output_preview: str | None = None


class AgentIterationFailed(Iteration):
    """A round failed."""

    type: ClassVar[str] = "agent.iteration_failed"
    counts_as_work: ClassVar[bool] = False
    error: str
    error_type: str | None = None


class AgentIterationValidated(Iteration):
    """A round's work was judged."""

    type: ClassVar[str] = "agent.iteration_validated"
    passed: bool
    feedback: str | None = None
    git_status: dict[str, Any] = Field(default_factory=dict)
    errors: list[str] = Field(default_factory=list)
    task_type: str | None = None
    stop_reason: (
        Literal[
            "validation_passed",
            "completion_signal",
            "max_iterations_reached",
            "max_cost_reached",
            "max_duration_reached",
            "consecutive_errors",
            "shutdown_signal",
            "unknown",
        ]
        | None
    ) = None
