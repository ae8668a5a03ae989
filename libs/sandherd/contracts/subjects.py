"""Every subject, once: who may say what, who hears it, and which stream keeps it.

The README's table, the AsyncAPI document, the broker's permissions and the tests are made from `TABLE`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import UnsafeNameError, safe_name

PREFIX: Final = "sandherd.v1"


class Principal(StrEnum):
    """Who may speak on the broker. Each has a credential of its own."""

    SPAWNER = "spawner"
    EVENT_INGEST = "event-ingest"
    MONITOR = "monitor"
    MESSAGE_RELAY = "message-relay"
    WORKER = "worker"
    """The program in one sandbox, with that sandbox's rights and no others."""
    JOINER = "joiner"
    """A sandbox's second credential, which can do one thing: ask for the worker's."""
    CLIENT = "client"
    """A person or program that works in one project."""
    OPERATOR = "operator"
    """A person who works in every project and mends the herd."""


class Mood(StrEnum):
    """What kind of thing is said."""

    EVENT = "event"
    COMMAND = "command"
    REQUEST = "request"
    INBOX = "inbox"
    DELIVERY = "delivery"
    ARTIFACT = "artifact"
    OUTPUT = "output"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One row of the table. `{project}`, `{sandbox}` and the like stand for one token each."""

    name: str
    mood: Mood
    template: str
    says: str
    producers: frozenset[Principal]
    consumers: frozenset[Principal]
    stream: str | None = None

    def pattern(self, values: Mapping[str, str] | None = None) -> str:
        """The subject with `values` filled in and `*` for every other token."""
        known = values or {}
        return ".".join(
            known.get(token[1:-1], "*") if token.startswith("{") else token for token in self.template.split(".")
        )

    def fill(self, **values: str) -> str:
        """The subject for these names. Raises `UnsafeNameError` if one of them is not safe."""
        return ".".join(
            safe_name(values[token[1:-1]], token[1:-1]) if token.startswith("{") else token
            for token in self.template.split(".")
        )

    def match(self, subject: str) -> dict[str, str] | None:
        """The names in `subject` if it is one of these, else None."""
        wanted, given = self.template.split("."), subject.split(".")
        if len(wanted) != len(given):
            return None
        found: dict[str, str] = {}
        for want, token in zip(wanted, given, strict=True):
            if want.startswith("{"):
                found[want[1:-1]] = token
            elif want != token:
                return None
        return found


_P = Principal
_PEOPLE: Final = frozenset({_P.CLIENT, _P.OPERATOR})
_SERVICES: Final = frozenset({_P.SPAWNER, _P.EVENT_INGEST, _P.MONITOR, _P.MESSAGE_RELAY})
_LISTENERS: Final = _SERVICES | _PEOPLE


def _event(domain: str, producer: Principal, says: str) -> Subject:
    return Subject(
        name=f"event.{domain}",
        mood=Mood.EVENT,
        template=f"{PREFIX}.event.{{project}}.{{{'sandbox' if domain == 'agent' else 'entity'}}}.{domain}.{{action}}",
        says=says,
        producers=frozenset({producer}),
        consumers=_LISTENERS,
        stream="EVENTS",
    )


def _command(service: Principal, verb: str, producers: frozenset[Principal], says: str) -> Subject:
    return Subject(
        name=f"command.{service}.{verb}",
        mood=Mood.COMMAND,
        template=f"{PREFIX}.command.{service}.{verb}.{{project}}",
        says=says,
        producers=producers,
        consumers=frozenset({service}),
        stream="COMMANDS",
    )


def _request(service: Principal, verb: str, producers: frozenset[Principal], says: str) -> Subject:
    return Subject(
        name=f"request.{service}.{verb}",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.{service}.{verb}.{{project}}",
        says=says,
        producers=producers,
        consumers=frozenset({service}),
    )


TABLE: Final[tuple[Subject, ...]] = (
    _event("agent", _P.WORKER, "What an agent does, said by the worker of that one sandbox."),
    _event("task", _P.SPAWNER, "What becomes of a task."),
    _event("sandbox", _P.SPAWNER, "What becomes of a sandbox."),
    _event("branch", _P.SPAWNER, "What becomes of a task's branch."),
    _event("message", _P.MESSAGE_RELAY, "What becomes of a message to an agent."),
    _event("approval", _P.MESSAGE_RELAY, "What becomes of a request for a person's leave."),
    _event("monitor", _P.MONITOR, "What the monitor found, decided and saw come of it."),
    _command(_P.SPAWNER, "submit_task", _PEOPLE, "Do this task."),
    _command(_P.SPAWNER, "cancel_task", _PEOPLE | {_P.MONITOR}, "Stop this task."),
    _command(_P.SPAWNER, "terminate_sandbox", _PEOPLE | {_P.MONITOR}, "End this sandbox."),
    _command(_P.MESSAGE_RELAY, "send_message", _PEOPLE | {_P.MONITOR}, "Say this to an agent."),
    _request(_P.SPAWNER, "tasks", _PEOPLE, "Which tasks are there now?"),
    _request(_P.SPAWNER, "sandboxes", _PEOPLE, "Which sandboxes are there now?"),
    _request(_P.EVENT_INGEST, "events", _PEOPLE, "Which events are kept?"),
    _request(_P.EVENT_INGEST, "trajectory", _PEOPLE, "What did this agent do?"),
    _request(_P.EVENT_INGEST, "tasks", _PEOPLE, "Which tasks were there?"),
    _request(_P.EVENT_INGEST, "sandboxes", _PEOPLE, "Which sandboxes were there?"),
    _request(_P.EVENT_INGEST, "audit", _PEOPLE, "Is anything missing?"),
    _request(_P.EVENT_INGEST, "output", _PEOPLE, "What did its terminal show?"),
    _request(_P.EVENT_INGEST, "dead", frozenset({_P.OPERATOR}), "What could not be handled?"),
    _request(_P.SPAWNER, "requeue", frozenset({_P.OPERATOR}), "Try this dead letter again."),
    _request(_P.EVENT_INGEST, "requeue", frozenset({_P.OPERATOR}), "Try this dead letter again."),
    _request(_P.MESSAGE_RELAY, "requeue", frozenset({_P.OPERATOR}), "Try this dead letter again."),
    Subject(
        name="request.spawner.credential",
        mood=Mood.REQUEST,
        template=f"{PREFIX}.request.spawner.credential.{{project}}.{{sandbox}}",
        says="A credential for this sandbox's worker, please.",
        producers=frozenset({_P.JOINER}),
        consumers=frozenset({_P.SPAWNER}),
    ),
    Subject(
        name="inbox",
        mood=Mood.INBOX,
        template=f"{PREFIX}.inbox.{{project}}.{{sandbox}}",
        says="A message that waits for one sandbox.",
        producers=frozenset({_P.MESSAGE_RELAY}),
        consumers=frozenset({_P.MESSAGE_RELAY}),
        stream="INBOX",
    ),
    Subject(
        name="deliver",
        mood=Mood.DELIVERY,
        template=f"{PREFIX}.deliver.{{project}}.{{sandbox}}",
        says="A message, into the worker's hands; its reply is the receipt.",
        producers=frozenset({_P.MESSAGE_RELAY}),
        consumers=frozenset({_P.WORKER}),
    ),
    Subject(
        name="artifact",
        mood=Mood.ARTIFACT,
        template=f"{PREFIX}.artifact.{{project}}.{{sandbox}}.{{artifact}}",
        says="Large bytes, in chunks.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.EVENT_INGEST}),
        stream="ARTIFACTS",
    ),
    Subject(
        name="output",
        mood=Mood.OUTPUT,
        template=f"{PREFIX}.output.{{project}}.{{sandbox}}",
        says="Terminal bytes of one sandbox.",
        producers=frozenset({_P.WORKER}),
        consumers=frozenset({_P.EVENT_INGEST}) | _PEOPLE,
        stream="OUTPUT",
    ),
    Subject(
        name="dead",
        mood=Mood.DEAD,
        template=f"{PREFIX}.dead.{{service}}.{{reason}}",
        says="A message that could not be handled, with its reason.",
        producers=_SERVICES,
        consumers=_SERVICES,
        stream="DEAD",
    ),
)

BY_NAME: Final[Mapping[str, Subject]] = {row.name: row for row in TABLE}

INBOX: Final = BY_NAME["inbox"]
DELIVER: Final = BY_NAME["deliver"]
ARTIFACT: Final = BY_NAME["artifact"]
OUTPUT: Final = BY_NAME["output"]
CREDENTIAL: Final = BY_NAME["request.spawner.credential"]

_EVENT_TOKENS: Final = 7


def event_subject(project: str, entity: str, event_type: str) -> str:
    """Where an event of this type about this entity is said. Raises `UnsafeNameError`."""
    return f"{PREFIX}.event.{safe_name(project, 'project')}.{safe_name(entity, 'entity')}.{event_type}"


@lru_cache(maxsize=8192)  # a herd speaks on few subjects, and often; what is refused is not kept
def read_event_subject(subject: str) -> tuple[str, str, str]:
    """`(project, entity, type)` of an event's subject. Raises `ContractError` (`wrong_subject`)."""
    parts = subject.split(".")
    if len(parts) != _EVENT_TOKENS or parts[:3] != [*PREFIX.split("."), "event"]:
        raise ContractError(Code.WRONG_SUBJECT, f"{subject[:120]!r} is no event's subject")
    try:
        return safe_name(parts[3], "project"), safe_name(parts[4], "entity"), f"{parts[5]}.{parts[6]}"
    except UnsafeNameError as error:
        raise ContractError(Code.UNSAFE_NAME, str(error), field=error.field) from None


def command_subject(command_type: str, project: str) -> str:
    """Where a command of this type for this project is said."""
    return BY_NAME[f"command.{command_type}"].fill(project=project)


def request_subject(request_type: str, project: str) -> str:
    """Where a request of this type about this project is asked; `fleet` asks about all of them."""
    return BY_NAME[f"request.{request_type}"].fill(project=project)


def dead_subject(service: str, code: Code) -> str:
    """Where a service puts what it can't handle."""
    return BY_NAME["dead"].fill(service=service, reason=code.replace("_", "-"))
