"""The parts of a recorded session: its scripted model's turns, its work tree, a user's actions, and its label."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Harness = Literal["claude", "openhands", "acp", "command"]
Rule = Literal[
    "loop", "repeat_varied", "cycle", "fan_out", "error_streak", "monologue", "chanting", "no_progress", "edit_thrash",
    "unverified_end", "compaction_storm", "constraint", "denials", "steering_ignored", "stuck",
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Run a command of the shell."""

    command: str
    timeout: int | None = None
    """Milliseconds, if the model states it."""
    background: bool = False
    about: str = ""
    """The description that Claude's model adds to a command; it is not part of the command."""


@dataclass(frozen=True)
class Read:
    """Read a file of the work tree."""

    path: str
    offset: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Write:
    """Create a file, or replace its content."""

    path: str
    content: str


@dataclass(frozen=True)
class Edit:
    """Replace a text of a file by another one."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Subagent:
    """Start a sub-agent, whose model has the script of this name."""

    script: str
    about: str


@dataclass(frozen=True)
class Tool:
    """Call any tool of the harness."""

    name: str
    input: dict[str, Any]


Act = Run | Read | Write | Edit | Subagent | Tool


@dataclass(frozen=True)
class Send:
    """A user, the monitor or another agent sends a message; the model gets it with the next results."""

    text: str
    type: Literal["user_message", "guardian_nudge", "system", "interrupt"] = "user_message"
    sender: str = "usr-anna"


@dataclass(frozen=True)
class Step:
    """One response of the model."""

    acts: tuple[Act, ...] = ()
    text: str = ""
    thinking: str = ""
    clock: float | None = None
    """Seconds that the response takes in the recording; None: a few, by the scenario's own random numbers."""
    sent: tuple[Send, ...] = ()
    """Messages to the agent while the model responds; the model gets them with the results of this step's calls."""
    at_fault: bool = False
    """Whether this is the first step of what the label expects to be found."""
    failure: int | None = None
    """The HTTP status with which the model's server responds instead."""
    message: str = "Overloaded"
    """The text of that response."""
    tokens: int = 0
    """The size of the context that the model reports; 0 is that of a small one."""

    def while_sending(self, *sent: Send) -> "Step":
        """The step with these messages sent meanwhile."""
        return replace(self, sent=(*self.sent, *sent))


def step(*acts: Act, text: str = "", thinking: str = "", **more: Any) -> Step:
    """A response of the model with these calls."""
    return Step(acts, text, thinking, **more)


def agent_text(text: str, **more: Any) -> Step:
    """A response without a call, which ends a turn."""
    return Step((), text, **more)


def fault(first: Step) -> Step:
    """The step, marked as the first one at fault."""
    return replace(first, at_fault=True)


def marked(steps: Sequence[Step]) -> list[Step]:
    """The steps, with the first one marked as the first one at fault."""
    return [fault(steps[0]), *steps[1:]]


def times(count: int, *steps: Step) -> list[Step]:
    """The repeated steps, with the first one marked as the first one at fault."""
    return marked(list(steps) * count)


@dataclass(frozen=True)
class Refusal:
    """A call that a user refuses, with the reason; others are granted. `contains` is a part of its input."""

    contains: str
    reason: str
    seconds: float = 20
    """The seconds that the user takes for a decision in the recording."""
    granted: bool = False
    """Whether the call is granted after that time instead."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One session: `rule` is expected to be found in it; without one it is healthy."""

    name: str
    task: str
    steps: tuple[Step, ...]
    harness: Harness = "claude"
    rule: Rule | None = None
    imitates: Rule | None = None
    """The rule whose documented false positive a healthy session shows."""
    note: str
    """What happens, and why it is at fault or not."""
    may: tuple[str, ...] = ()
    """Rules whose findings are correct here as well, but not required."""
    kind: str | None = None
    tree: dict[str, str] = field(default_factory=dict)
    setup: str = ""
    """Commands that prepare the work tree before the agent starts; no part of the recording."""
    programs: dict[str, str] = field(default_factory=dict)
    """Stand-ins of tools that are slow or not installed: Python that uses `programs/slow_tools.py`, by command name."""
    scripts: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    """The scripts of sub-agents, by name."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of the harness."""
    spec: dict[str, Any] = field(default_factory=dict)
    """Further fields of the task."""
    env: dict[str, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] | None = None
    """A user's decisions on approvals; None if no tool needs one."""
    followups: tuple[tuple[Send, float], ...] = ()
    """Messages after the end of each turn, with the seconds until they are sent; the sandbox lingers for them."""
    turns: int = 1
    """The number of turns that end before the first of these messages: each notice of a background task begins one."""
    ends: str = "agent.completed"

    def __post_init__(self) -> None:
        if self.rule is not None and not any(one.at_fault for one in self.all_steps()):
            raise ValueError(f"{self.name}: no step is marked as the first one at fault")

    @property
    def is_healthy(self) -> bool:
        """Whether no rule may find anything in it."""
        return self.rule is None

    def all_steps(self) -> list[Step]:
        """The steps of the agent and its sub-agents."""
        return [*self.steps, *(one for script in self.scripts.values() for one in script)]


def described(scenario: Scenario) -> dict[str, Any]:
    """The fields of a label that do not depend on the recording."""
    expect = [] if scenario.rule is None else [scenario.rule]
    imitates = {} if scenario.imitates is None else {"imitates": scenario.imitates}
    about = {"harness": scenario.harness, "author": "blind", "may": sorted(scenario.may), "note": scenario.note}
    return {**about, "expect": expect, **imitates}


SCENARIOS: dict[str, Callable[[], Scenario]] = {}
"""All scenarios by name; each is created when it is recorded."""


def scenario(make: Callable[[], Scenario]) -> Callable[[], Scenario]:
    """Register a scenario under its function's name, with hyphens."""
    name = make.__name__.replace("_", "-")
    if name in SCENARIOS:
        raise ValueError(f"two scenarios are named {name}")
    SCENARIOS[name] = make
    return make


def flat(*parts: Step | Sequence[Step]) -> tuple[Step, ...]:
    """Steps and sequences of steps as one sequence."""
    return tuple(one for part in parts for one in ([part] if isinstance(part, Step) else part))
