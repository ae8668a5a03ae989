"""The artifact store has the artifacts that events refer to, which the stream only transports."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from event_ingest.artifacts import artifact_storage
from event_ingest.artifacts.artifact_storage import ArtifactStorage
from event_ingest.artifacts.artifact_stream import chunks_of
from event_ingest.artifacts.content_store import BucketContents, DirectoryContents
from event_ingest.artifacts.encryption import herd_key
from event_ingest.database import Database
from event_ingest.schema import Schema, ensure_partitions
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.s3_place import S3Place
from sandherd.bus.errors import RefusedError
from sandherd.client import Context, Herd
from sandherd.contracts.chunks import CHUNK_BYTES, ArtifactBuilder
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import GetHistoryStatus, ReadStoredArtifact
from sandherd.contracts.subjects import ARTIFACT, Principal
from spawner.main import compose as compose_spawner
from tests.engines.s3_server import BUCKET, Fault, s3_network, serving_s3
from tests.engines.s3_server import KEY as KEY_ID
from tests.patience import PATIENCE
from tests.polling import eventually

CONTENT = bytes(range(256)) * 1024 + b"the end"
KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
OTHER_KEY = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose directory exists."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_s3(tmp_path_factory.mktemp("s3") / "data") as url:
        yield url


async def publish(
    world: Any, name: str, content: bytes = CONTENT, *, sandbox: str = "sbx-1", project: str = "default"
) -> ArtifactRef:
    """Publish an artifact as a sandbox's worker, the last chunk first: chunks may come in any order."""
    worker = await world.bus(Principal.WORKER, project=project, sandbox=sandbox)
    builder = ArtifactBuilder(project, sandbox, name, "application/octet-stream")
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, max(1, len(content)), CHUNK_BYTES)]
    messages = [(builder.add(chunk), chunk) for chunk in chunks]
    for msg_id, chunk in reversed(messages):
        await worker.publish(builder.subject, chunk, msg_id=f"{sandbox}-{msg_id}")
    return builder.reference()


async def refer(world: Any, script: Any, reference: ArtifactRef, *, sandbox: str = "sbx-1", **fields: Any) -> None:
    """Publish an event that refers to an artifact."""
    await world.emit([script.agent("agent.work_saved", sandbox, artifact=reference, files=1, **fields)])


@asynccontextmanager
async def rows_of(world: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(world.postgres)
    try:
        yield connection
    finally:
        await connection.close()


async def all_stored(world: Any, count: int) -> None:
    """Wait until this number of artifacts is in the store."""
    async with rows_of(world) as connection:

        async def stored() -> bool:
            return bool(
                await connection.fetchval("select count(*) from artifacts where stored_at is not null") == count
            )

        await eventually(stored, f"{count} artifacts stored", PATIENCE)


async def chunk_of(world: Any, artifact: str, index: int = 0, owner: str = "sbx-1") -> bytes:
    """The reply to the spawner's request for a chunk."""
    spawner = await world.bus(Principal.SPAWNER)
    found = await spawner.ask(ReadStoredArtifact(owner=owner, artifact=artifact, index=index), "default")
    return bytes(found.data)


async def whole(world: Any, artifact: str) -> bytes:
    return b"".join([await chunk_of(world, artifact, index) for index in range(3)])


def files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


async def test_artifact_is_stored_once_by_its_content(world: Any, script: Any, store: Path) -> None:
    """Equal artifacts of a project share one file, named by the digest of its content; projects share no file."""
    async with world.service(artifact_store=str(store)).running():
        await refer(world, script, await publish(world, "first"))
        await refer(world, script, await publish(world, "second", sandbox="sbx-2"), sandbox="sbx-2")
        other = await publish(world, "third", project="other", sandbox="sbx-3")
        await refer(world, script, other, project="other", sandbox="sbx-3")
        await all_stored(world, 3)
        assert await whole(world, "first") == CONTENT
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert [path.name for path in files(store)] == [digest, digest]
    assert {path.relative_to(store).parts[0] for path in files(store)} == {"default", "other"}
    assert files(store)[0].read_bytes() == CONTENT


async def test_client_reads_an_artifact_that_its_stream_no_longer_has(
    world: Any, script: Any, store: Path, tmp_path: Path
) -> None:
    """A client reads an artifact whose chunks the stream has lost, also only the first ones."""
    settings = world.broker.settings(Principal.SPAWNER, database_url=world.postgres, home=tmp_path)
    credentials = world.broker.credentials(Principal.CLIENT)
    context = Context(nats_url=world.broker.url, credentials=credentials, project="default", home=tmp_path)
    reference = await publish(world, "first")
    partly = await publish(world, "partly", sandbox="sbx-2")
    async with world.service(artifact_store=str(store)).running(), compose_spawner(settings).running():
        await refer(world, script, reference)
        await refer(world, script, partly, sandbox="sbx-2")
        await all_stored(world, 2)
        js = (await world.bus(Principal.SPAWNER)).js
        await js.purge_stream("ARTIFACTS", subject=reference.subject)
        await js.purge_stream("ARTIFACTS", subject=partly.subject, keep=1)
        async with Herd.connect(context, patience=PATIENCE) as herd:
            for one in (reference, partly):
                read = io.BytesIO()
                await herd.artifact(one, read)
                assert read.getvalue() == CONTENT


async def test_encrypted_content_is_read_with_its_key_only(world: Any, script: Any, store: Path) -> None:
    """An encrypted file has nothing of the content; with another key, or damaged, it is a typed error."""
    async with world.service(artifact_store=str(store), artifact_key=KEY).running():
        await refer(world, script, await publish(world, "first"))
        await all_stored(world, 1)
        assert await whole(world, "first") == CONTENT
        [file] = files(store)
        assert CONTENT[:64] not in file.read_bytes()
    async with world.service(artifact_store=str(store), artifact_key=OTHER_KEY).running():
        with pytest.raises(RefusedError) as refused:
            await chunk_of(world, "first")
        assert refused.value.problem.code is Code.CONFLICT
        assert "SANDHERD_ARTIFACT_KEY" in (refused.value.problem.remedy or "")
    damaged = bytearray(file.read_bytes())
    damaged[-20] ^= 1
    file.write_bytes(damaged)
    async with world.service(artifact_store=str(store), artifact_key=KEY).running():
        assert await chunk_of(world, "first") == CONTENT[:CHUNK_BYTES]
        with pytest.raises(RefusedError, match="damaged"):
            await chunk_of(world, "first", 2)


async def test_invalid_references_store_nothing_and_harm_nothing(world: Any, script: Any, store: Path) -> None:
    """References to another project, with a wrong digest or without chunks store nothing; a later valid one works."""
    foreign = await publish(world, "foreign", project="other", sandbox="sbx-3")
    forged = (await publish(world, "forged")).model_copy(update={"sha256": "0" * 64})
    absent = ArtifactBuilder("default", "sbx-1", "absent", "text/plain")
    absent.add(b"nothing")
    async with world.service(artifact_store=str(store)).running():
        for reference in (foreign, forged, absent.reference()):
            await refer(world, script, reference)
        await refer(world, script, await publish(world, "first", b""))
        await all_stored(world, 1)
        problems: dict[str, str | None] = {}
        async with rows_of(world) as connection:

            async def tried() -> bool:
                rows = await connection.fetch("select artifact, problem from artifacts where stored_at is null")
                problems.update(rows)
                return None not in problems.values()

            await eventually(tried, "each artifact tried", PATIENCE)
        assert "digest" in str(problems["forged"])
        assert "not stored" in str(problems["absent"])
        assert set(problems) == {"forged", "absent"}
        assert await chunk_of(world, "first") == b""
        with pytest.raises(RefusedError, match="no chunk"):
            await chunk_of(world, "forged")
    assert [path.read_bytes() for path in files(store)] == [b""]


async def test_hostile_references_harm_no_other_artifact(world: Any, script: Any, store: Path) -> None:
    """An artifact of one last chunk that claims 4 GiB, or a name of another sandbox's, harms no other artifact."""
    worker = await world.bus(Principal.WORKER, sandbox="sbx-1")
    count = (4 << 30) // CHUNK_BYTES
    subject = ARTIFACT.fill(project="default", sandbox="sbx-1", artifact="huge")
    await worker.publish(subject, bytes(CHUNK_BYTES), msg_id=f"sbx-1-huge-{count - 1}")
    huge = ArtifactRef(artifact="huge", subject=subject, size=4 << 30, sha256="1" * 64, chunks=count)
    own = await publish(world, "own", b"mine", sandbox="sbx-2")
    other = (await publish(world, "other", b"forged")).model_copy(update={"artifact": own.artifact})
    async with world.service(artifact_store=str(store)).running():
        await refer(world, script, huge)
        await refer(world, script, other.model_copy(update={"subject": own.subject}))
        await refer(world, script, own, sandbox="sbx-2")
        await all_stored(world, 1)
        assert await chunk_of(world, "own", owner="sbx-2") == b"mine"
    assert [path.read_bytes() for path in files(store)] == [b"mine"]


async def test_content_that_the_store_has_lost_is_stored_again(world: Any, script: Any, store: Path) -> None:
    """Lost content is stored again with the next artifact that has it: a row alone does not prove that it is stored."""
    async with world.service(artifact_store=str(store)).running():
        await refer(world, script, await publish(world, "first"))
        await all_stored(world, 1)
        files(store)[0].unlink()
        await refer(world, script, await publish(world, "second"))
        await all_stored(world, 2)
        assert await whole(world, "first") == CONTENT


async def test_unavailable_store_is_reported_and_used_again_when_it_is_back(
    world: Any, script: Any, store: Path
) -> None:
    """The status has the reason and the number of waiting artifacts; nothing is written to another place."""
    store.rmdir()
    async with world.service(artifact_store=str(store)).running():
        await refer(world, script, await publish(world, "first"))

        async def reported() -> bool:
            found = (await world.ask(GetHistoryStatus())).artifacts
            return found.waiting == 1 and "not an existing directory" in (found.problem or "")

        await eventually(reported, "the store's problem in the status", PATIENCE)
        assert not store.exists()
        store.mkdir()
        async with rows_of(world) as connection:
            await connection.execute("update artifacts set next_try_at = now()")
        await refer(world, script, await publish(world, "second", b"2"))
        await all_stored(world, 2)
        found = (await world.ask(GetHistoryStatus())).artifacts
        assert (found.contents, found.bytes, found.waiting, found.problem) == (2, len(CONTENT) + 1, 0, None)
        assert found.location == str(store)


async def test_interrupted_copy_is_done_again(world: Any, script: Any, store: Path) -> None:
    """A service that ends between the file and the row, or within the file, leaves nothing that counts."""
    reference = await publish(world, "first")
    folder = store / "default" / reference.sha256[:2]
    folder.mkdir(parents=True)
    (folder / reference.sha256).write_bytes(CONTENT)
    (folder / f"{reference.sha256}.partial").write_bytes(b"half")
    async with world.service(artifact_store=str(store)).running():
        await refer(world, script, reference)
        await all_stored(world, 1)
    assert [path.name for path in files(store)] == [reference.sha256]


async def test_two_replicas_store_each_artifact_once(world: Any, script: Any, store: Path) -> None:
    """Each artifact is stored once, whichever replica has stored its event."""
    first, second = (world.service(artifact_store=str(store)) for _ in range(2))
    async with first.running(), second.running():
        for number in range(10):
            await refer(world, script, await publish(world, f"artifact-{number}", f"{number}".encode()))
        await all_stored(world, 10)
    assert sorted(path.read_bytes() for path in files(store)) == [f"{number}".encode() for number in range(10)]


async def test_replica_without_the_lock_exports_no_gauges(world: Any, script: Any, store: Path) -> None:
    """While another replica stores artifacts, this one does not export what it measured before."""
    service = world.service(artifact_store=str(store))
    async with service.running(), rows_of(world) as other:
        await refer(world, script, await publish(world, "first"))
        await all_stored(world, 1)
        await other.execute("select pg_advisory_lock($1)", artifact_storage.LOCK_ID)
        await refer(world, script, await publish(world, "second"))
        read = service.registry.get_sample_value
        await eventually(lambda: {read(name) for name in artifact_storage.GAUGES} == {None}, "no gauge is exported")


async def test_project_at_its_limit_gets_no_new_contents(world: Any, script: Any, store: Path) -> None:
    """The newest artifacts wait until there is space; other projects and known contents are stored."""
    large = bytes(700_000)
    async with world.service(artifact_store=str(store), artifact_project_mb=1).running():
        await refer(world, script, await publish(world, "first", large))
        await all_stored(world, 1)
        await refer(world, script, await publish(world, "beyond", large + b"more"))
        await refer(world, script, await publish(world, "same", large))
        await refer(world, script, await publish(world, "small", b"small"))
        reference = await publish(world, "others", large + b"more", sandbox="sbx-2", project="other")
        await refer(world, script, reference, sandbox="sbx-2", project="other")
        await all_stored(world, 4)
        operator = await world.bus(Principal.OPERATOR)
        found = (await operator.ask(GetHistoryStatus(), "fleet", timeout=PATIENCE)).artifacts
        assert (found.waiting, found.over_limit, found.contents) == (1, 1, 3)
        assert "project default may have 1 MB" in found.problem
    async with world.service(artifact_store=str(store), artifact_project_mb=2).running():
        async with rows_of(world) as connection:
            await connection.execute("update artifacts set next_try_at = now()")
        await all_stored(world, 5)
        assert (await operator.ask(GetHistoryStatus(), "fleet", timeout=PATIENCE)).artifacts.over_limit == 0


@pytest.mark.parametrize("archived", [False, True])
async def test_content_is_removed_when_no_event_refers_to_it(
    world: Any, script: Any, store: Path, archived: bool
) -> None:
    """Content is removed with the days of all its events, or when its project's events are removed from these days.

    It stays while another artifact has it, and if the events are archived.
    """
    contents = DirectoryContents(store)
    async with world.service(artifact_store=str(store)).running():
        await refer(world, script, await publish(world, "shared"))
        await refer(world, script, await publish(world, "same", sandbox="sbx-2"), sandbox="sbx-2")
        await refer(world, script, await publish(world, "old", b"old"))
        await all_stored(world, 3)
    database = Database(world.postgres, Schema(lambda: datetime.now(UTC)).prepare)
    storage = ArtifactStorage(world.service(), database, contents, asyncio.Event(), archived=archived)
    async with rows_of(world) as connection:
        await connection.execute("update artifacts set day = current_date - 100 where artifact in ('old', 'shared')")
        await storage.collect_garbage(connection)
        assert len(files(store)) == (2 if archived else 1)
        reduced = datetime.now(UTC) - timedelta(days=5)
        await ensure_partitions(connection, reduced)
        await connection.execute("update artifacts set day = $1", reduced.date())
        await storage.collect_garbage(connection)
        assert len(files(store)) == (2 if archived else 1)
        await connection.execute("insert into history_reductions values ($1, '{}', '{default}', 1)", reduced.date())
        await storage.collect_garbage(connection)
        assert len(files(store)) == (2 if archived else 0)
        assert await connection.fetchval("select count(*) from artifact_contents") == len(files(store))


async def test_content_in_a_bucket_is_written_read_and_deleted(s3_url: str) -> None:
    """A bucket works with and without encryption; chunks are read separately; a bucket's refusal is a typed error."""
    with s3_network(s3_url) as network:
        place = S3Place(
            BUCKET, network.prefix, endpoint=network.url, access_key_id=KEY_ID, secret_access_key=KEY_ID, retries=0
        )
        digest = hashlib.sha256(CONTENT).hexdigest()
        for key in (None, herd_key(KEY)):
            contents = BucketContents(place, key)
            written = await asyncio.to_thread(
                contents.write, "default", digest, chunks_of(io.BytesIO(CONTENT), len(CONTENT)), len(CONTENT)
            )
            assert (written == len(CONTENT)) == (key is None)
            read = partial(contents.read_chunk, "default", digest, 2, len(CONTENT), encrypted=key is not None)
            assert await asyncio.to_thread(read) == CONTENT[2 * CHUNK_BYTES :]
            await asyncio.to_thread(contents.delete, "default", digest, encrypted=key is not None)
            with pytest.raises(StorageError) as missing:
                await asyncio.to_thread(read)
            assert missing.value.fault is StorageFault.MISSING
        network.fault = lambda _request: Fault.DENIED
        with pytest.raises(StorageError) as denied:
            await asyncio.to_thread(BucketContents(place).write, "default", digest, [b"x"], 1)
        assert denied.value.fault is StorageFault.DENIED
