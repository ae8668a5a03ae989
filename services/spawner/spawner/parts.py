"""What the spawner is made of once it runs, and which part answers which request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus.answering import Answerer
from sandherd.bus.consuming import Delivery, Outcome
from sandherd.contracts.requests import AskCredential, LiveSandboxes, LiveTasks, Request
from spawner.commands import Commands
from spawner.sandboxes.credentials import Credentials
from spawner.tasks.agents import Agents
from spawner.tasks.questions import Questions

ANSWERED: Final[tuple[type[Request[Any]], ...]] = (AskCredential, LiveTasks, LiveSandboxes)
"""What the spawner is asked; it is answered as soon as its parts are there."""


@dataclass(frozen=True)
class Parts:
    """The handlers of everything that comes in. `answers` has one for each of `ANSWERED`."""

    command: Callable[[Delivery], Awaitable[Outcome]]
    agent: Callable[[Delivery], Awaitable[Outcome]]
    answers: Mapping[type[Request[Any]], Answerer]


def make_parts(commands: Commands, agents: Agents, credentials: Credentials, questions: Questions) -> Parts:
    """Who handles what."""
    return Parts(
        command=commands.handle,
        agent=agents.handle,
        answers={
            AskCredential: credentials.grant,
            LiveTasks: questions.tasks,
            LiveSandboxes: questions.sandboxes,
        },
    )
