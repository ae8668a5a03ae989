"""Backs up everything that the broker stores to a folder, and restores it.

    backup.json          the time, the version, and for each stream its configuration and the digest of its file
    <stream>.snapshot    the stream as exported by the broker: messages, consumers and their positions

The bucket of leases is included only for its fencing tokens: records have the token of their last change, and writes
with a smaller token fail. The entries in the bucket expire within seconds.
"""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from sandherd.admin.backup_manifest import FORMAT, MANIFEST_FILE, folder_errors, read_manifest
from sandherd.admin.deployment import reading_keys
from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.auth.setup_permissions import BACKUP_INBOX, BACKUP_PERMISSIONS, PROVISIONER, presence_subject
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity, NoResponderError, RequestTimeoutError
from sandherd.bus.identity import HerdIdentity, Registrar
from sandherd.bus.identity.credentials import parts_of, write_secret
from sandherd.bus.provision import ProvisionError, provision
from sandherd.bus.snapshots import NoSpaceError, SnapshotFailedError, restore, save, wait_for_streams
from sandherd.client.context import Context
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS, Consumer
from sandherd.contracts.subjects import Principal
from sandherd.plurals import pluralize
from sandherd.private_files import DIRECTORY, make_directory
from sandherd.progress_steps import OnStep, ignore_step

_CREDENTIAL_SECONDS: Final = 86_400.0
_PRESENCE_TIMEOUT_SECONDS: Final = 5.0
_SPACE_RETRY_SECONDS: Final = 45.0
"""How long a restore is retried while the broker reports too little space."""
_RETRY_SECONDS: Final = 0.5
_END_NOTICED_SECONDS: Final = 2.0
"""Seconds within which the broker notices that a service has ended."""
_LAST_STREAM: Final = "ARTIFACTS"
"""The stream that is saved last: artifacts are stored before the events that refer to them, so none is missing."""
_KEYS_STREAM: Final = "KV_secret_keys"
_LEASES_STREAM: Final = "KV_leases"
_STOP_REMEDY: Final = "stop spawner, event-ingest, monitor, message-relay and gateway; agents keep working meanwhile"


class RestoreState(Enum):
    """The state of a backup's stream at the broker to restore to."""

    MISSING = "missing"
    UNUSED = "unused"
    """The stream exists, and has never stored anything that is needed."""
    SAME = "same"


StreamResult = tuple[str, str]
"""The name of a stream (or of another part of a backup), and a text about its result."""


async def back_up(
    context: Context, keys: Path, folder: Path, *, with_secrets: bool = False, on_step: OnStep = ignore_step
) -> list[StreamResult]:
    """Save all streams and buckets to a new folder; keys of secrets only if `with_secrets`. Raises `HerdError`."""
    async with _storage_connection(context, keys) as bus:
        await _refuse_if_running(bus)
        with folder_errors(folder):
            make_directory(folder.parent)
            folder.mkdir(mode=DIRECTORY)
            folder.chmod(DIRECTORY)
        try:
            saved = await _save_streams(bus, folder, _stream_names(with_secrets=with_secrets), on_step)
            await _refuse_if_running(bus)  # a service started meanwhile may have changed streams not saved yet
        except BaseException:  # raised again: an incomplete backup is worse than none
            shutil.rmtree(folder)
            raise
    return [(name, _size_text(stream["state"])) for name, stream in saved.items()]


async def _save_streams(bus: Bus, folder: Path, names: list[str], on_step: OnStep) -> dict[str, dict[str, Any]]:
    saved = {}
    for number, name in enumerate(names, 1):
        on_step(f"saving stream {name} ({number} of {len(names)})")
        saved[name] = await save(bus, name, folder / f"{name}.snapshot")
    manifest = {
        "format": FORMAT,
        "version": version("sandherd"),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "streams": saved,
    }
    write_secret(folder / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")
    return saved


async def restore_streams(
    context: Context, keys: Path, folder: Path, replicas: int | None, *, on_step: OnStep = ignore_step
) -> list[StreamResult]:
    """Restore every stream that differs from the backup, and create all others of this version. Raises `HerdError`.

    A stream that was never used is replaced. If one has other content, nothing is restored.
    """
    manifest = read_manifest(folder)
    async with _storage_connection(context, keys) as bus:
        await _refuse_if_running(bus)
        states = {name: await _restore_state(bus, name, saved) for name, saved in manifest.items()}
        to_restore = {name: saved for name, saved in manifest.items() if states[name] is not RestoreState.SAME}
        for number, (name, saved) in enumerate(to_restore.items(), 1):
            on_step(f"restoring stream {name} ({number} of {len(to_restore)})")
            if states[name] is RestoreState.UNUSED:
                await bus.js.delete_stream(name)
            await _restore_stream(bus, folder, name, saved, replicas)
        await provision(bus.js, replicas)
    return [
        (name, _size_text(saved["state"]) if name in to_restore else "as it was") for name, saved in manifest.items()
    ]


async def read_again(context: Context, keys: Path) -> int:
    """Make event-ingest read all events of the stream EVENTS again. Returns their number. Raises `HerdError`."""
    (ingest,) = (consumer for consumer in CONSUMERS if consumer.name == "event-ingest")
    async with _storage_connection(context, keys) as bus:
        with suppress(NotFoundError):
            await bus.js.delete_consumer(ingest.stream, ingest.name)
        await provision(bus.js)
        return (await bus.js.stream_info(ingest.stream)).state.messages


def _stream_names(*, with_secrets: bool) -> list[str]:
    buckets = (bucket.stream for bucket in BUCKETS if with_secrets or bucket.stream != _KEYS_STREAM)
    names = [*(stream.name for stream in STREAMS), *buckets]
    return [*(name for name in names if name != _LAST_STREAM), _LAST_STREAM]


async def _refuse_if_running(bus: Bus) -> None:
    """Raise `HerdError` (`conflict`) if a service runs.

    A service changes several streams in one operation: a backup during it would be inconsistent.
    """
    running = {service.value for service in SERVICES if await _is_subscribed(bus, service)}
    # A service of the previous version may not support this request.
    running |= await _pulling_services(bus, 0 if running else _END_NOTICED_SECONDS)
    if running:
        raise HerdError.of(Code.CONFLICT, f"{', '.join(sorted(running))} still running", remedy=_STOP_REMEDY)


async def _is_subscribed(bus: Bus, service: Principal) -> bool:
    """Whether a service subscribes to its requests, even if it is stuck."""
    try:
        await bus.request(presence_subject(service), b"{}", timeout=_PRESENCE_TIMEOUT_SECONDS)
    except NoResponderError:
        return False
    except RequestTimeoutError:
        return bus.connected
    return True


async def _pulling_services(bus: Bus, patience: float) -> set[str]:
    """The services that still pull from their consumers after at most `patience` seconds.

    For a moment, the broker still has the requests of a service that has just ended.
    """
    deadline = time.monotonic() + patience
    while True:
        pulling = {consumer.service.value for consumer in CONSUMERS if await _is_pulled(bus, consumer)}
        if not pulling or time.monotonic() > deadline:
            return pulling
        await asyncio.sleep(_RETRY_SECONDS)


async def _is_pulled(bus: Bus, consumer: Consumer) -> bool:
    try:
        return bool((await bus.js.consumer_info(consumer.stream, consumer.name)).num_waiting)
    except NotFoundError:
        return False


async def _restore_state(bus: Bus, name: str, saved: Mapping[str, Any]) -> RestoreState:
    """The state of a backup's stream at the broker. Raises `HerdError` if it has other content than the backup."""
    try:
        state = (await bus.js.stream_info(name)).state
    except NotFoundError:
        return RestoreState.MISSING
    saved_state = saved["state"]
    if not state.last_seq:
        # The backup's stream may be empty as well; but a subscription may have been created.
        is_same = not saved_state["last_seq"] and state.consumer_count >= saved_state.get("consumer_count", 0)
        return RestoreState.SAME if is_same else RestoreState.UNUSED
    if name == _LEASES_STREAM:  # no service runs, so its entries are unused, and only its last sequence matters
        return RestoreState.SAME if state.last_seq >= saved_state["last_seq"] else RestoreState.UNUSED
    if (state.messages, state.first_seq, state.last_seq) == (
        saved_state["messages"],
        saved_state["first_seq"],
        saved_state["last_seq"],
    ):
        return RestoreState.SAME
    raise HerdError.of(
        Code.CONFLICT,
        f"{name} has {state.messages} messages that differ from the backup",
        remedy="restore to a new broker; existing data is never overwritten",
    )


async def _restore_stream(bus: Bus, folder: Path, name: str, saved: Mapping[str, Any], replicas: int | None) -> None:
    request = {**saved, "config": {**saved["config"], **({"num_replicas": replicas} if replicas else {})}}
    deadline = asyncio.get_running_loop().time() + _SPACE_RETRY_SECONDS
    while True:
        try:
            return await restore(bus, name, folder / f"{name}.snapshot", request)
        except NoSpaceError:  # servers of a cluster exchange their free space only periodically
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


def _size_text(state: Mapping[str, Any]) -> str:
    return pluralize(state["messages"], "message")


@asynccontextmanager
async def _storage_connection(context: Context, keys: Path) -> AsyncIterator[Bus]:
    """A connection with all permissions for streams. Its credential is not written to a file. Raises `HerdError`."""
    with reading_keys(keys):
        token, seed = parts_of(Registrar(HerdIdentity(keys)).mint_stream_admin(_CREDENTIAL_SECONDS, BACKUP_PERMISSIONS))
    identity = ConnectionIdentity.renewing(lambda: token, seed)
    try:
        async with Bus.open(
            context.nats_url, name=PROVISIONER, identity=identity, inbox=BACKUP_INBOX, connect_timeout=10
        ) as bus:
            await wait_for_streams(bus)
            yield bus
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(
            Code.UNAVAILABLE,
            str(error) or repr(error),
            remedy="check that the broker runs at NATS_URL, and was started with the keys of --identity",
        ) from None
    except (SnapshotFailedError, ProvisionError, OSError) as error:
        raise HerdError.of(Code.REFUSED, str(error), remedy="see the broker's log") from None
