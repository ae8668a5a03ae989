"""Who may speak on the broker, and what one row of the subject table is."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandherd.contracts.names import safe_name


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
    SUBSCRIBER = "subscriber"
    """A program that hears one project's events, and can do nothing else."""
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
