"""What the spawner is made of once it runs, and which part answers which request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus.answering import Answerer
from sandherd.bus.consuming import Delivery, Outcome
from sandherd.contracts.requests import (
    AskCredential,
    DeleteSecret,
    ListSecrets,
    LiveSandboxes,
    LiveTasks,
    Prune,
    Request,
    SetSecret,
)
from spawner.access import answers as access
from spawner.commands import Commands
from spawner.named_secrets.answers import SecretAnswers
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.pruning import Pruning
from spawner.tasks.agents import Agents
from spawner.tasks.questions import Questions

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {
    **dict.fromkeys((AskCredential, LiveTasks, LiveSandboxes, Prune, SetSecret, ListSecrets, DeleteSecret), 1),
    **access.ANSWERED,
}
"""What the spawner is asked, and how many of each are answered at once; as soon as its parts are there."""


@dataclass(frozen=True)
class Parts:
    """The handlers of everything that comes in. `answers` has one for each of `ANSWERED`."""

    read: Callable[[], Awaitable[None]]
    """Returns once the records are read: an answer before would lack some, and a command would find nothing."""
    command: Callable[[Delivery], Awaitable[Outcome]]
    agent: Callable[[Delivery], Awaitable[Outcome]]
    answers: Mapping[type[Request[Any]], Answerer]


def make_parts(
    *,
    read: Callable[[], Awaitable[None]],
    commands: Commands,
    agents: Agents,
    credentials: Credentials,
    questions: Questions,
    pruning: Pruning,
    secrets: SecretAnswers,
    others: Mapping[type[Request[Any]], Answerer],
) -> Parts:
    """Who handles what. `others` are the answers of the access room."""
    return Parts(
        read=read,
        command=commands.handle,
        agent=agents.handle,
        answers={
            AskCredential: credentials.grant,
            LiveTasks: questions.tasks,
            LiveSandboxes: questions.sandboxes,
            Prune: pruning.prune,
            SetSecret: secrets.set_secret,
            ListSecrets: secrets.list_secrets,
            DeleteSecret: secrets.delete_secret,
            **others,
        },
    )
