"""What a test of the conformance suite may want of an agent, of whatever kind."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Write a file of the work tree, with its own tool: this text, and a line feed."""

    path: str
    text: str


@dataclass(frozen=True)
class Run:
    """Run a command of the shell, to its end."""

    command: str


@dataclass(frozen=True)
class Receive:
    """Continue to work until it has received this; an agent that can't receive in the middle of a turn ignores it."""

    text: str


@dataclass(frozen=True)
class Say:
    """Say this. It is the last thing that an agent does in a turn."""

    text: str


@dataclass(frozen=True)
class Recall:
    """Be known to remember; it comes before messages."""


Act = Edit | Run | Receive | Say | Recall
