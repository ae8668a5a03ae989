"""Everything that the broker keeps, put into a folder and back.

    backup.json          when, by which version, and of each stream what it is restored with and its file's digest
    <stream>.snapshot    the stream as the broker gives it: messages, consumers and how far they are

The leases are in it for their numbers alone: records name the holding by which they were changed last, and a holding
with a smaller number may not change them any more. What is in the bucket runs out within seconds.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from sandherd.bus.connection import Bus, BusError, Identity, NoResponderError, RequestTimeoutError
from sandherd.bus.identity import Identity as Material
from sandherd.bus.identity import Registrar
from sandherd.bus.identity.credentials import parts_of, write_secret
from sandherd.bus.permissions import SERVICES
from sandherd.bus.provision import ProvisionError, provision
from sandherd.bus.setup_permissions import BACKUP_INBOX, KEPT_AND_BACK, PROVISIONER, asked_whether_there
from sandherd.bus.snapshots import NoRoomError, SnapshotFailedError, restore, save
from sandherd.client.context import Context
from sandherd.client.deployment import reading_keys
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS, Consumer
from sandherd.contracts.subjects import Principal
from sandherd.private_files import DIRECTORY, make_directory

BOOK: Final = "backup.json"
FORMAT: Final = 1
_LIFE: Final = 86_400.0
_ANSWER: Final = 5.0
_ROOM: Final = 45.0
_LOOK_AGAIN: Final = 0.5
_LAST: Final = "ARTIFACTS"
"""What an event refers to is there before the event: so it is taken after the events."""
_OPENERS: Final = "KV_secret_keys"
_LEASES: Final = "KV_leases"
_STOP: Final = "stop spawner, event-ingest, monitor and message-relay; agents work on meanwhile"


class Standing(Enum):
    """How a stream of a backup stands where it is to be restored."""

    MISSING = "missing"
    UNUSED = "unused"
    """It was made, and nothing was ever said in it that is worth keeping."""
    SAME = "same"


Stated = tuple[str, str]
"""A stream, and what became of it."""


async def back_up(context: Context, keys: Path, folder: Path, *, with_secrets: bool = False) -> list[Stated]:
    """Take every stream and bucket into a new folder; what opens stored secrets only `with_secrets`. `HerdError`."""
    async with _keeping(context, keys) as bus:
        await _refuse_if_running(bus)
        with _told(folder):
            make_directory(folder.parent)
            folder.mkdir(mode=DIRECTORY)
            folder.chmod(DIRECTORY)
        try:
            held = await _take(bus, folder, _names(with_secrets=with_secrets))
            await _refuse_if_running(bus)  # one that was started meanwhile has changed what was not taken yet
        except BaseException:  # raised again: half a backup is worse than none
            shutil.rmtree(folder)
            raise
    return [(name, _said(one["state"])) for name, one in held.items()]


async def _take(bus: Bus, folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    held = {name: await save(bus, name, folder / f"{name}.snapshot") for name in names}
    book = {
        "format": FORMAT,
        "version": version("sandherd"),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "streams": held,
    }
    write_secret(folder / BOOK, json.dumps(book, indent=1) + "\n")
    return held


async def bring_back(context: Context, keys: Path, folder: Path, replicas: int | None) -> list[Stated]:
    """Put every stream back that is not as in the backup, and make what this version has beside. Raises `HerdError`.

    A stream that was never used is taken for none. One that holds anything else is left alone, and all with it.
    """
    book = _read_book(folder)
    async with _keeping(context, keys) as bus:
        await _refuse_if_running(bus)
        standing = {name: await _standing(bus, name, told) for name, told in book.items()}
        wanted = {name: told for name, told in book.items() if standing[name] is not Standing.SAME}
        for name, told in wanted.items():
            if standing[name] is Standing.UNUSED:
                await bus.js.delete_stream(name)
            await _bring(bus, folder, name, told, replicas)
        await provision(bus.js, replicas)
    return [(name, _said(told["state"]) if name in wanted else "as it was") for name, told in book.items()]


async def read_again(context: Context, keys: Path) -> int:
    """Have event-ingest read everything once more that EVENTS holds. Returns how many events. Raises `HerdError`."""
    (ingest,) = (consumer for consumer in CONSUMERS if consumer.name == "event-ingest")
    async with _keeping(context, keys) as bus:
        with suppress(NotFoundError):
            await bus.js.delete_consumer(ingest.stream, ingest.name)
        await provision(bus.js)
        return (await bus.js.stream_info(ingest.stream)).state.messages


def _names(*, with_secrets: bool) -> list[str]:
    buckets = (bucket.stream for bucket in BUCKETS if with_secrets or bucket.stream != _OPENERS)
    names = [*(stream.name for stream in STREAMS), *buckets]
    return [*(name for name in names if name != _LAST), _LAST]


async def _refuse_if_running(bus: Bus) -> None:
    """Services change several streams for one thing: taken while they do, the streams would not fit together."""
    found = {service.value for service in SERVICES if await _is_there(bus, service)}
    # One of the version before may know no such question.
    found |= {consumer.service.value for consumer in CONSUMERS if await _is_heard(bus, consumer)}
    if found:
        raise HerdError.of(Code.CONFLICT, f"{', '.join(sorted(found))} still at work", remedy=_STOP)


async def _is_there(bus: Bus, service: Principal) -> bool:
    """Whether anybody hears what this service is asked; one that is stuck, too."""
    try:
        await bus.request(asked_whether_there(service), b"{}", timeout=_ANSWER)
    except NoResponderError:
        return False
    except RequestTimeoutError:
        return bus.connected
    return True


async def _is_heard(bus: Bus, consumer: Consumer) -> bool:
    try:
        return bool((await bus.js.consumer_info(consumer.stream, consumer.name)).num_waiting)
    except NotFoundError:
        return False


async def _standing(bus: Bus, name: str, told: Mapping[str, Any]) -> Standing:
    """How a stream of the backup stands at the broker. Raises `HerdError` if it holds what the backup does not."""
    try:
        state = (await bus.js.stream_info(name)).state
    except NotFoundError:
        return Standing.MISSING
    was = told["state"]
    if not state.last_seq:
        # Nothing was ever said in the backup's either; but a subscription may have been made.
        same = not was["last_seq"] and state.consumer_count >= was.get("consumer_count", 0)
        return Standing.SAME if same else Standing.UNUSED
    if name == _LEASES:  # nobody is at work: what is in it is nobody's, and all that counts is how far it is
        return Standing.SAME if state.last_seq >= was["last_seq"] else Standing.UNUSED
    if (state.messages, state.first_seq, state.last_seq) == (was["messages"], was["first_seq"], was["last_seq"]):
        return Standing.SAME
    raise HerdError.of(
        Code.CONFLICT,
        f"{name} holds {state.messages} messages that are not those of the backup",
        remedy="restore into a broker that was just made; it is never written over",
    )


async def _bring(bus: Bus, folder: Path, name: str, told: Mapping[str, Any], replicas: int | None) -> None:
    given = {**told, "config": {**told["config"], **({"num_replicas": replicas} if replicas else {})}}
    deadline = asyncio.get_running_loop().time() + _ROOM
    while True:
        try:
            return await restore(bus, name, folder / f"{name}.snapshot", given)
        except NoRoomError:  # servers of a cluster tell one another only now and then what they have room for
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_LOOK_AGAIN)


def _read_book(folder: Path) -> dict[str, dict[str, Any]]:
    """The streams of a backup, each with a file that is whole. Raises `HerdError`."""
    with _told(folder):
        book = json.loads((folder / BOOK).read_text())
        if book["format"] != FORMAT:
            raise ValueError(f"it was made by version {book['version']}, which writes another format")
        for name, told in book["streams"].items():
            with (folder / f"{name}.snapshot").open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != told["sha256"]:
                    raise ValueError(f"{name}.snapshot is not what was written")
        return dict(book["streams"])


def _said(state: Mapping[str, Any]) -> str:
    return f"{state['messages']} messages"


@asynccontextmanager
async def _keeping(context: Context, keys: Path) -> AsyncIterator[Bus]:
    """A connection with every right to what is kept, by a credential that is written nowhere. Raises `HerdError`."""
    with reading_keys(keys):
        token, seed = parts_of(Registrar(Material(keys)).mint_stream_admin(_LIFE, KEPT_AND_BACK))
    voice = Identity.renewing(lambda: token, seed)
    try:
        async with Bus.open(context.nats_url, name=PROVISIONER, identity=voice, inbox=BACKUP_INBOX, patience=10) as bus:
            yield bus
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(
            Code.UNAVAILABLE,
            str(error) or repr(error),
            remedy="see that the broker runs at NATS_URL, and was started with the identity of --identity",
        ) from None
    except (SnapshotFailedError, ProvisionError, OSError) as error:
        raise HerdError.of(Code.REFUSED, str(error), remedy="see the broker's log") from None


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What can be wrong with a backup's folder, in one line. Raises `HerdError`."""
    try:
        yield
    except FileExistsError:
        raise HerdError.of(Code.CONFLICT, f"{folder} is there already", remedy="name a new folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HerdError.of(
            Code.REFUSED, f"{folder} can't be used: {error}", remedy="name the folder of a whole backup"
        ) from None
