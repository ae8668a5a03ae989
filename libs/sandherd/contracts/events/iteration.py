"""Events about the iterations of an agent that works until its work is valid."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.agent import AgentEvent
from sandherd.contracts.events.base import Tone
from sandherd.contracts.model import Count, MicroDollars, Seconds


class Iteration(AgentEvent):
    """The state of a continuous task, which all iteration events contain."""

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
    """An iteration begins."""

    type: ClassVar[str] = "agent.iteration_started"
    prompt_preview: str | None = None

    def summarize(self) -> str:
        return f"iteration {self.iteration_num}: {self.prompt_preview or ''}"


class AgentIterationCompleted(Iteration):
    """An iteration is complete."""

    type: ClassVar[str] = "agent.iteration_completed"
    cost_micro_usd: MicroDollars = 0
    output_preview: str | None = None

    def summarize(self) -> str:
        return f"iteration {self.iteration_num}, {self.total_cost_micro_usd / 1e6:.4f} $ so far"


class AgentIterationFailed(Iteration):
    """An iteration failed."""

    type: ClassVar[str] = "agent.iteration_failed"
    counts_as_work: ClassVar[bool] = False
    counts_as_error: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    error: str
    error_type: str | None = None

    def summarize(self) -> str:
        return f"iteration {self.iteration_num}: {self.error}"


class AgentIterationValidated(Iteration):
    """The work of an iteration was validated."""

    type: ClassVar[str] = "agent.iteration_validated"
    tone: ClassVar[Tone | None] = "attention"
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

    def summarize(self) -> str:
        result = "valid" if self.passed else f"not valid: {', '.join(self.errors)}"
        return f"iteration {self.iteration_num}: {result}" + (f"; {self.stop_reason}" if self.stop_reason else "")
