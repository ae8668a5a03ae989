"""Chunks of large files are stored for an hour, and given only to the sandbox that they are for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sandherd.bus.connection import Bus, BusError, RefusedError
from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import INLINE_BYTES, ArtifactPiece, DownloadChunk, Fetch, UploadChunk
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import ARTIFACT, Principal
from sandherd.stack.broker import Broker
from spawner.live_state import LiveState
from tests.integration.spawner.played import access_handlers, make_record

pytestmark = pytest.mark.own_broker

P = Principal
MIB = 1024 * 1024


@pytest.fixture
async def live(herd: Broker) -> AsyncIterator[LiveState]:
    """Two replicas: neither may have knowledge of a chunk that the other lacks."""
    async with access_handlers(herd, max_file_mb=1) as live, access_handlers(herd, max_file_mb=1):
        yield live


@pytest.fixture
async def client(herd: Broker) -> AsyncIterator[Bus]:
    async with herd.bus(P.CLIENT, project="p1") as bus:
        yield bus


@pytest.fixture
async def worker(herd: Broker) -> AsyncIterator[Bus]:
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus:
        yield bus


def chunk(index: int, data: bytes | None = None, artifact: str = "upl-1") -> UploadChunk:
    return UploadChunk(sandbox="sbx-1", artifact=artifact, index=index, data=b"%d" % index if data is None else data)


async def fetch_all(worker: Bus, artifact: str = "upl-1", owner: str = "sbx-1") -> list[ArtifactPiece]:
    """Fetch chunks one after the other until there is no further one."""
    found: list[ArtifactPiece] = []
    while True:
        after = found[-1].after if found else 0
        try:
            request = Fetch(owner=owner, artifact=artifact, after=after)
            found.append(await worker.ask(request, "p1", sandbox="sbx-1"))
        except RefusedError as error:
            if error.problem.code is not Code.NOT_FOUND:
                raise
            return found


async def refused(bus: Bus, request: Any, sandbox: str | None = None) -> Any:
    with pytest.raises(RefusedError) as caught:
        await bus.ask(request, "p1", sandbox=sandbox)
    return caught.value.problem


async def test_chunks_are_stored_once_in_any_order(live: LiveState, client: Bus, worker: Bus) -> None:
    """Chunks that are sent out of order, concurrently and twice, to any replica, are each stored once."""
    await make_record(live)
    order = [3, 0, 4, 1, 1, 3, 2, 0, 4]
    held = await asyncio.gather(*(client.ask(chunk(index), "p1") for index in order))
    assert [answer.index for answer in held] == order
    assert sorted((found.index, found.data) for found in await fetch_all(worker)) == [
        (index, b"%d" % index) for index in range(5)
    ]


async def test_any_bytes_are_transferred(live: LiveState, client: Bus, worker: Bus) -> None:
    """A full chunk of all byte values and an empty chunk arrive unchanged."""
    await make_record(live)
    whole = bytes(range(256)) * (INLINE_BYTES // 256)
    for index, data in enumerate((whole, b"")):
        await client.ask(chunk(index, data), "p1")
    assert [found.data for found in await fetch_all(worker)] == [whole, b""]
    first = await client.ask(DownloadChunk(sandbox="sbx-1", artifact="upl-1"), "p1")
    assert (first.data, first.index) == (whole, 0)


async def test_missing_chunk_is_not_found(live: LiveState, client: Bus, worker: Bus) -> None:
    """A reader gets the present chunks, then `not_found`: the indexes show what is missing."""
    await make_record(live)
    for index in (0, 2):
        await client.ask(chunk(index), "p1")
    assert [found.index for found in await fetch_all(worker)] == [0, 2]
    assert await fetch_all(worker, "upl-never") == []
    problem = await refused(client, DownloadChunk(sandbox="sbx-1", artifact="upl-1", after=10**12))
    assert (problem.code, problem.field) == (Code.NOT_FOUND, "after")


async def test_refusals_state_what_is_missing(live: LiveState, client: Bus, worker: Bus) -> None:
    """The end of an artifact, an unknown artifact and an unknown sandbox have different error texts and fields."""
    await make_record(live)
    for index in (0, 1):
        await worker.publish(ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact="art-1"), b"x", msg_id=f"a-{index}")
    end = await refused(client, DownloadChunk(sandbox="sbx-1", artifact="art-1", after=2))
    assert (end.code, end.field) == (Code.NOT_FOUND, "after")
    assert end.message == "artifact art-1 of sbx-1 has no chunk after 2: all that are stored come before"
    unknown = await refused(client, DownloadChunk(sandbox="sbx-1", artifact="art-2"))
    assert (unknown.code, unknown.field) == (Code.NOT_FOUND, "artifact")
    assert unknown.message == "sbx-1 has no artifact art-2"
    assert "for at most 7 days" in str(unknown.remedy)
    for name in ("sbx-9", "task-9"):
        no_one = await refused(client, DownloadChunk(sandbox=name, artifact="art-1", after=1))
        assert (no_one.code, no_one.field) == (Code.NOT_FOUND, "sandbox")
        assert no_one.message == f"project p1 has no record of {name}, and no artifact art-1 of it"
        assert "`subject`" in str(no_one.remedy)
    own = await refused(worker, Fetch(owner="sbx-1", artifact="art-2", after=1), "sbx-1")
    assert (own.field, own.message) == ("artifact", unknown.message)


async def test_chunks_expire_by_themselves(live: LiveState, client: Bus, herd: Broker) -> None:
    """The broker deletes a chunk after an hour, without a service."""
    await make_record(live)
    await client.ask(chunk(0), "p1")
    async with herd.bus(P.SPAWNER) as spawner:
        stored = await spawner.js.get_msg("ARTIFACTS", seq=1, direct=True)
    assert stored.subject == ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact="upl-1")
    assert (stored.headers or {})["Nats-TTL"] == "3600s"


async def test_chunk_beyond_the_cap_is_not_stored(live: LiveState, client: Bus, herd: Broker) -> None:
    """`too_large` names the cap, and the stream stays empty; the last fitting chunk is accepted."""
    await make_record(live)
    fits = MIB // INLINE_BYTES
    for index, size, field in ((fits, 1, "data"), (fits + 1, 0, "index"), (10**9, 1, "index")):
        problem = await refused(client, chunk(index, b"x" * size))
        assert (problem.code, problem.field) == (Code.TOO_LARGE, field)
        assert "1048576 (1 MiB)" in problem.message
    async with herd.bus(P.SPAWNER) as spawner:
        assert (await spawner.js.stream_info("ARTIFACTS")).state.messages == 0
        await client.ask(chunk(MIB // INLINE_BYTES - 1, b"x" * INLINE_BYTES), "p1")
        assert (await spawner.js.stream_info("ARTIFACTS")).state.messages == 1


@pytest.mark.parametrize(
    "left", [{"previous": Previous(attempt=1, sandbox="sbx-0")}, {"resumes": "sbx-0"}], ids=["retried", "resumed"]
)
async def test_sandbox_fetches_only_the_artifacts_of_its_resume(
    live: LiveState, herd: Broker, left: dict[str, Any]
) -> None:
    """A sandbox may fetch its own artifacts, and those of the attempts and tasks that it resumes, but no other's."""
    await make_record(live, **left)
    async with AsyncExitStack() as stack:
        bus = {}
        for name in ("sbx-0", "sbx-1", "sbx-2"):
            worker = await stack.enter_async_context(herd.bus(P.WORKER, project="p1", sandbox=name))
            subject = ARTIFACT.fill(project="p1", sandbox=name, artifact="art-1")
            await worker.publish(subject, name.encode(), msg_id=f"art-of-{name}-0")
            bus[name] = worker
        for owner in ("sbx-0", "sbx-1"):
            assert [found.data for found in await fetch_all(bus["sbx-1"], "art-1", owner)] == [owner.encode()]
        problem = await refused(bus["sbx-1"], Fetch(owner="sbx-2", artifact="art-1"), "sbx-1")
        assert (problem.code, problem.field) == (Code.REFUSED, "owner")
        with pytest.raises(BusError):
            await bus["sbx-2"].ask(Fetch(owner="sbx-0", artifact="art-1"), "p1", sandbox="sbx-1", timeout=0.2)


async def test_ended_sandbox_fetches_nothing(live: LiveState, worker: Bus) -> None:
    """An ended sandbox fetches nothing, even if its credential is still valid."""
    await make_record(live, state=SandboxState.FAILED)
    problem = await refused(worker, Fetch(owner="sbx-1", artifact="art-1"), "sbx-1")
    assert problem.code is Code.REFUSED


async def test_artifacts_are_readable_after_the_end_of_a_sandbox(live: LiveState, client: Bus, worker: Bus) -> None:
    """The transcript and the work tree can be read after the sandbox has ended and its record is deleted."""
    subject = ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact="art-1")
    await worker.publish(subject, b"what it did", msg_id="art-1-0")
    assert (await client.ask(DownloadChunk(sandbox="sbx-1", artifact="art-1"), "p1")).data == b"what it did"


INVALID = (("x", b"x"), ("", b""), ("0", b"x" * (INLINE_BYTES + 1)), ("9" * 5000, b"x"))
"""Invalid indexes of a chunk, and contents."""


async def test_invalid_chunk_is_not_served(live: LiveState, client: Bus, worker: Bus) -> None:
    """A sandbox may publish anything as its artifact; a reader of an invalid chunk gets a conflict."""
    for number, (index, data) in enumerate(INVALID):
        name = f"art-{number}"
        subject = ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact=name)
        await worker.publish(subject, data, msg_id=f"{name}-{index}")
        problem = await refused(client, DownloadChunk(sandbox="sbx-1", artifact=name))
        assert problem.code is Code.CONFLICT, number


async def test_message_of_another_project_does_not_duplicate_a_chunk(
    live: LiveState, client: Bus, worker: Bus, herd: Broker
) -> None:
    """A message with the same artifact and index from another project does not suppress a chunk."""
    await make_record(live)
    await live.sandboxes.create((await make_record(live, "sbx-2")).model_copy(update={"project": "p2"}))
    async with herd.bus(P.CLIENT, project="p2") as stranger:
        await stranger.ask(UploadChunk(sandbox="sbx-2", artifact="upl-1", index=0, data=b"not this"), "p2")
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-3") as other:
        subject = ARTIFACT.fill(project="p1", sandbox="sbx-3", artifact="upl-1")
        await other.publish(subject, b"nor this", msg_id="upl-1-0")
    await client.ask(chunk(0), "p1")
    assert [found.data for found in await fetch_all(worker)] == [b"0"]


async def test_full_stream_refuses_chunks_and_retains_earlier_ones(live: LiveState, client: Bus, herd: Broker) -> None:
    """A full stream refuses a chunk, with an error that says to send it again, and retains the earlier chunks."""
    await make_record(live)
    await client.ask(chunk(0), "p1")
    async with herd.provisioner() as jetstream:
        config = (await jetstream.stream_info("ARTIFACTS")).config
        await jetstream.update_stream(config.evolve(max_bytes=1000))
        problem = await refused(client, chunk(1, b"x" * 2000))
        assert (problem.code, problem.remedy) == (Code.UNAVAILABLE, "send it again")
        assert (await jetstream.stream_info("ARTIFACTS")).state.messages == 1


async def test_subscriber_reads_artifacts_of_its_project_only(herd: Broker, live: LiveState, client: Bus) -> None:
    """A subscriber can read the chunks that an event of its project refers to; others do not exist for it."""
    await make_record(live)
    await client.ask(chunk(0), "p1")
    request = DownloadChunk(sandbox="sbx-1", artifact="upl-1", after=0)
    async with herd.bus(P.SUBSCRIBER, project="p1") as own, herd.bus(P.SUBSCRIBER, project="p2") as other:
        assert (await own.ask(request, "p1")).data == b"0"
        with pytest.raises(RefusedError) as caught:
            await other.ask(request, "p2")
        assert caught.value.problem.code is Code.NOT_FOUND
