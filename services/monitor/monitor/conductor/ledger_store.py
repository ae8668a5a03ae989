"""Stores the ledgers in the monitor's bucket, and publishes their outboxes.

A write replaces only the revision that was read.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from monitor.bucket_entries import BucketReader
from monitor.conductor.conductor_decisions import MESSAGE_EXPIRES
from monitor.conductor.conductor_ledger import ConductorLedger, OutboxEntry
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import read_batch
from sandherd.bus.errors import BusError
from sandherd.bus.kv import revision_headers
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.commands import COMMANDS, SendMessage
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.headers import KV_OPERATION, LIFETIME, MESSAGE_ID
from sandherd.contracts.names import FLEET, new_uuid
from sandherd.contracts.subjects import event_subject
from sandherd.telemetry import logs

_BUCKET: Final = "monitor"
_PREFIX: Final = f"$KV.{_BUCKET}.conductor"
_DELETE_HEADERS: Final = {KV_OPERATION: "DEL", LIFETIME: "60s"}
_MAX_COMMAND_AGE: Final = timedelta(seconds=100)
"""The time after which the broker may not recognise the id of a command any more. A command that a former holder may
have published is not repeated then."""
_BATCH_SIZE: Final = 100
_BATCH_BYTES: Final = 16 * 1024 * 1024
_log: Final = logs.get("conductor")


class LedgerConflictError(Exception):
    """A ledger could not be stored. Another replica may have stored it, so all ledgers have to be read again."""


class LedgerStore:
    """The ledgers of all projects, by project."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._revisions: dict[str, int] = {}

    async def restore(self, selected: str = "*") -> dict[str, ConductorLedger]:
        """The ledger of the project `selected`, or of all projects for `*`. Raises nats-py's errors.

        A ledger that can't be read is replaced by an empty one.
        """
        ledgers: dict[str, ConductorLedger] = {}
        for entry in await BucketReader(self._bus, _BUCKET, f"conductor.{selected}").remaining():
            project = entry.key.rpartition(".")[2]
            self._revisions[project] = entry.revision
            if entry.value is not None:
                ledgers[project] = _read(project, entry.value)
        return ledgers

    async def save(self, project: str, ledger: ConductorLedger) -> None:
        """Store a ledger. Raises `LedgerConflictError`."""
        headers = revision_headers(self._revisions.get(project, 0))
        payload = b"" if ledger.is_empty else ledger.model_dump_json(exclude_defaults=True).encode()
        if ledger.is_empty:
            headers |= _DELETE_HEADERS
        try:
            ack = await self._bus.publish(f"{_PREFIX}.{project}", payload, msg_id=str(new_uuid()), headers=headers)
        except BusError as error:
            raise LedgerConflictError(f"{project}: {error}") from error
        self._revisions[project] = ack.seq


async def read_ledgers(bus: Bus, project: str) -> dict[str, ConductorLedger]:
    """The stored ledger of one project, or those of all for `fleet`. Raises nats-py's errors."""
    return await LedgerStore(bus).restore("*" if project == FLEET else project)


def _read(project: str, document: bytes) -> ConductorLedger:
    try:
        return ConductorLedger.model_validate_json(document)
    except ValidationError as error:
        _log.warning(
            "conductor record unreadable, starting with an empty one", project=project, error=repr(error)[:200]
        )
        return ConductorLedger()


class Outbox:
    """Publishes the entries of outboxes."""

    def __init__(self, bus: Bus, publisher: EventPublisher) -> None:
        self._bus = bus
        self._publisher = publisher
        self._commands = 0

    async def publish(self, project: str, output: OutboxEntry, *, repeated: bool) -> None:
        """Publish one event or command.

        With `repeated`, a former holder may have published it already. Then an event is published only if the stream
        does not have it. A command is published only while its id, or the name of its message, still makes a second
        one harmless.
        """
        if output.type in EVENTS:
            if not (repeated and await self._is_stored(project, output)):
                await self._publish_event(project, output)
        elif not repeated or datetime.now(UTC) - output.at < _max_repeat_age(output):
            await self._publish_command(project, output)

    async def _is_stored(self, project: str, output: OutboxEntry) -> bool:
        subject = event_subject(project, output.entity, output.type)
        first = 1
        while batch := await read_batch(
            self._bus, "EVENTS", subject, first=first, limit=_BATCH_SIZE, max_bytes=_BATCH_BYTES
        ):
            first = batch[-1].sequence + 1
            if any(stored.headers.get(MESSAGE_ID) == str(output.id) for stored in batch):
                return True
        return False

    async def _publish_event(self, project: str, output: OutboxEntry) -> None:
        sandbox = output.entity if output.entity != FLEET else None
        await self._publisher.publish(
            EVENTS[output.type].model_validate_json(output.data),
            project=project,
            entity=output.entity,
            id=output.id,
            time=output.at,
            sandboxid=sandbox,
            taskid=output.task,
        )

    async def _publish_command(self, project: str, output: OutboxEntry) -> None:
        self._commands += 1
        data: Any = COMMANDS[output.type].model_validate_json(output.data)
        command = wrap(
            data,
            output.type,
            id=output.id,
            source=self._publisher.source,
            sequence=self._commands,
            project=project,
            subject=output.entity,
            time=output.at,
            taskid=output.task,
            sandboxid=output.entity,
        )
        await self._bus.publish_command(command)


def _max_repeat_age(output: OutboxEntry) -> timedelta:
    return timedelta(seconds=MESSAGE_EXPIRES) if output.type == SendMessage.type else _MAX_COMMAND_AGE
