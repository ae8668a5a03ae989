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
class Hear:
    """Go on working until this was said to it; what can't hear in the middle of a turn passes it over."""

    text: str


@dataclass(frozen=True)
class Say:
    """Say this. It is the last thing that an agent does in a turn."""

    text: str


@dataclass(frozen=True)
class Recall:
    """Be known to remember; it comes before what is said."""


Act = Edit | Run | Hear | Say | Recall
