"""The tasks and sandboxes that a connection has requested: the spawner may not have read the commands yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

from sandherd.contracts.envelope import Envelope

COMMAND_AGE: Final = timedelta(days=7)
"""How long the broker stores a command that is not read: `max_age` of the stream COMMANDS."""
_MAX_NAMES: Final = 10_000
"""How many names are stored; the oldest are dropped."""
_KINDS: Final = {"spawner.submit_task": "task", "spawner.create_sandbox": "sandbox"}


@dataclass(frozen=True)
class _Creation:
    ids: tuple[UUID, ...]
    last: datetime
    labels: Mapping[str, str]


class PendingCreations:
    """The names that commands of this connection create, each with the ids of the commands, oldest first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Creation] = {}

    def add(self, command: Envelope[Any]) -> None:
        """Add a command that the broker has stored. Commands that create no task or sandbox are ignored."""
        if command.type not in _KINDS:
            return
        key = _KINDS[command.type], command.subject
        before = self._found.pop(key, None)
        labels = command.data.spec.labels if command.type == "spawner.submit_task" else {}
        self._found[key] = _Creation((*(before.ids if before else ()), command.id), command.time, dict(labels))
        while len(self._found) > _MAX_NAMES:
            del self._found[next(iter(self._found))]

    def of(self, kind: Literal["task", "sandbox"], name: str) -> tuple[UUID, ...]:
        """The ids of the commands that create this task or sandbox; none if the broker no longer stores them."""
        found = self._found.get((kind, name))
        return found.ids if found is not None and _may_be_stored(found) else ()

    def tasks_with(self, labels: Mapping[str, str]) -> list[str]:
        """The submitted tasks that have all these labels, oldest first."""
        return [
            name
            for (kind, name), one in self._found.items()
            if kind == "task" and labels.items() <= one.labels.items() and _may_be_stored(one)
        ]


def _may_be_stored(creation: _Creation) -> bool:
    return datetime.now(UTC) - creation.last < COMMAND_AGE
