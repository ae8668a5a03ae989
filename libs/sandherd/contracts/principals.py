"""The principals of the broker, and the model of one row of the subject table."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandherd.contracts.names import safe_name


class Principal(StrEnum):
    """Who may use the broker. Each has a credential of its own."""

    SPAWNER = "spawner"
    EVENT_INGEST = "event-ingest"
    MONITOR = "monitor"
    MESSAGE_RELAY = "message-relay"
    GATEWAY = "gateway"
    WORKER = "worker"
    """The worker in one sandbox, with that sandbox's permissions and no others."""
    JOINER = "joiner"
    """A sandbox's second credential. It permits one thing: to request the credential of the sandbox's worker."""
    CLIENT = "client"
    """A user or program that works in one project."""
    SUBSCRIBER = "subscriber"
    """A program that receives one project's events, and can do nothing else."""
    OPERATOR = "operator"
    """A user who works in every project and operates the herd."""


class MessageKind(StrEnum):
    """The kind of message on a subject."""

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
    """One row of the subject table. Each placeholder, such as `{project}` or `{sandbox}`, stands for one token."""

    name: str
    kind: MessageKind
    template: str
    description: str
    producers: frozenset[Principal]
    consumers: frozenset[Principal]
    stream: str | None = None

    def pattern(self, values: Mapping[str, str] | None = None) -> str:
        """The subject with `values` filled in and `*` for every other token."""
        tokens = values or {}
        return ".".join(
            tokens.get(token[1:-1], "*") if token.startswith("{") else token for token in self.template.split(".")
        )

    def fill(self, **values: str) -> str:
        """The subject for these names. Raises `UnsafeNameError` if one of them is not safe."""
        return ".".join(
            safe_name(values[token[1:-1]], token[1:-1]) if token.startswith("{") else token
            for token in self.template.split(".")
        )

    def match(self, subject: str) -> dict[str, str] | None:
        """The names in `subject` if it matches the template, else None."""
        template_tokens, subject_tokens = self.template.split("."), subject.split(".")
        if len(template_tokens) != len(subject_tokens):
            return None
        names: dict[str, str] = {}
        for expected, token in zip(template_tokens, subject_tokens, strict=True):
            if expected.startswith("{"):
                names[expected[1:-1]] = token
            elif expected != token:
                return None
        return names
