"""The tasks and sandboxes that a connection has requested, because the spawner may not have read the commands yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from sandherd.contracts.envelope import Envelope

COMMAND_AGE: Final = timedelta(days=7)
"""How long the broker stores a command that is not read: `max_age` of the stream COMMANDS."""
_MAX_NAMES: Final = 10_000
"""Maximum number of stored names. The oldest names are dropped."""
_KIND_BY_COMMAND: Final = {"spawner.submit_task": "task", "spawner.create_sandbox": "sandbox"}


@dataclass(frozen=True)
class _Creation:
    """The commands that create one task or sandbox: their ids, the time of the last one, and the labels in it."""

    ids: tuple[UUID, ...]
    last: datetime
    labels: Mapping[str, str]


class PendingCreations:
    """The names that commands of this connection create, each with the ids of the commands, oldest first."""

    def __init__(self) -> None:
        self._creations: dict[tuple[str, str], _Creation] = {}

    def add(self, command: Envelope[Any]) -> None:
        """Add a command that the broker has stored. Commands that create no task or sandbox are ignored."""
        if command.type not in _KIND_BY_COMMAND:
            return
        key = _KIND_BY_COMMAND[command.type], command.subject
        previous = self._creations.pop(key, None)
        labels = command.data.spec.labels if command.type == "spawner.submit_task" else {}
        self._creations[key] = _Creation((*(previous.ids if previous else ()), command.id), command.time, dict(labels))
        while len(self._creations) > _MAX_NAMES:
            del self._creations[next(iter(self._creations))]

    def of(self, kind: Literal["task", "sandbox"], name: str) -> tuple[UUID, ...]:
        """The ids of the commands that create this task or sandbox; empty if the broker no longer stores them."""
        creation = self._creations.get((kind, name))
        return creation.ids if creation is not None and _may_be_stored(creation) else ()

    def tasks_with(self, labels: Mapping[str, str]) -> list[str]:
        """The submitted tasks that have all these labels, oldest first."""
        return [
            name
            for (kind, name), creation in self._creations.items()
            if kind == "task" and labels.items() <= creation.labels.items() and _may_be_stored(creation)
        ]


def _may_be_stored(creation: _Creation) -> bool:
    return datetime.now(UTC) - creation.last < COMMAND_AGE
