"""The acts that a test of the conformance suite can request of an agent of any kind."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Write a file of the work tree with the agent's own tool: this text, and a line feed."""

    path: str
    text: str


@dataclass(frozen=True)
class Run:
    """Run a shell command to its end."""

    command: str


@dataclass(frozen=True)
class Receive:
    """Continue to work until it has received this text; an agent that can't receive within a turn ignores this act."""

    text: str


@dataclass(frozen=True)
class Say:
    """Say this text; it is the last act of an agent in a turn."""

    text: str


@dataclass(frozen=True)
class Recall:
    """Show what it remembers; this act comes before messages."""


Act = Edit | Run | Receive | Say | Recall
