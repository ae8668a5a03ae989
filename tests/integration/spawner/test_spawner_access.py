"""Requests for commands and files in sandboxes: passed on to the right worker, or refused with the reason."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.bus.connection import Bus, RefusedError
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import (
    INLINE_BYTES,
    Download,
    DownloadChunk,
    Exec,
    ExecKill,
    ExecOutput,
    ExecState,
    ExecStatus,
    FileEntry,
    FileList,
    FileRead,
    FileWritten,
    ListFiles,
    Request,
    Upload,
    UploadChunk,
    WorkerDownload,
    WorkerExec,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerUpload,
)
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import ARTIFACT, Principal
from sandherd.stack.broker import Broker
from spawner.live_state import LiveState
from tests.integration.spawner.played import access_handlers, change_record, make_record, play
from tests.patience import PATIENCE

P = Principal
S = SandboxState
DIGEST = "0" * 64
MIB = 1024 * 1024


@pytest.fixture
async def live(herd: Broker) -> AsyncIterator[LiveState]:
    async with access_handlers(herd, max_file_mb=1) as live:
        yield live


@pytest.fixture
async def client(herd: Broker) -> AsyncIterator[Bus]:
    async with herd.bus(P.CLIENT, project="p1") as bus:
        yield bus


@pytest.fixture
async def worker(herd: Broker) -> AsyncIterator[Bus]:
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus:
        yield bus


def reference(size: int, **over: Any) -> ArtifactRef:
    own = ARTIFACT.fill(project="p1", sandbox="sbx-1", artifact="upl-1")
    chunks = max(1, -(-size // INLINE_BYTES))
    given = {"artifact": "upl-1", "subject": own, "size": size, "sha256": DIGEST, "chunks": chunks}
    return ArtifactRef.model_validate(given | over)


REQUESTS: tuple[Request[Any], ...] = (
    Exec(sandbox="sbx-1", exec="exc-1", command=["true"]),
    ExecStatus(sandbox="sbx-1", exec="exc-1"),
    ExecKill(sandbox="sbx-1", exec="exc-1"),
    ListFiles(sandbox="sbx-1"),
    Upload(sandbox="sbx-1", transfer="trf-1", path="a", data=b"x", sha256=DIGEST),
    UploadChunk(sandbox="sbx-1", artifact="upl-1", index=0, data=b"x"),
    Download(sandbox="sbx-1", transfer="trf-1", path="a"),
)
"""One request of each kind that is about a living sandbox."""


async def refused(bus: Bus, request: Request[Any], project: str = "p1") -> Any:
    with pytest.raises(RefusedError) as caught:
        await bus.ask(request, project, timeout=PATIENCE)
    return caught.value.problem


# --- requests that are refused before they reach a worker -----------------------------------------------------


async def test_unknown_sandbox_is_reported(live: LiveState, client: Bus) -> None:
    """No request is passed on without a record, even if another project has a sandbox of that name."""
    await live.sandboxes.create((await make_record(live, "sbx-2")).model_copy(update={"project": "p2"}))
    for request in REQUESTS:
        problem = await refused(client, request)
        assert (problem.code, problem.field) == (Code.NOT_FOUND, "sandbox"), request
        assert "sbx-1" in problem.message
        assert "p1" in problem.message


async def test_request_to_an_ended_sandbox_is_a_conflict(live: LiveState, client: Bus) -> None:
    """The error for a request to an ended sandbox has the reason of its end."""
    await make_record(live, state=S.TERMINATED, reason="expired")
    for request in REQUESTS:
        problem = await refused(client, request)
        assert (problem.code, problem.message) == (Code.CONFLICT, "sandbox sbx-1 has ended (expired)"), request


async def test_paused_sandbox_is_a_conflict(live: LiveState, client: Bus) -> None:
    """The error for a paused sandbox states how to continue: its worker is frozen, and would not reply."""
    await make_record(live, state=S.PAUSED, pause_wanted=True)
    for request in REQUESTS:
        problem = await refused(client, request)
        assert (problem.code, problem.message) == (Code.CONFLICT, "sandbox sbx-1 is paused"), request
        assert problem.remedy == "resume sandbox sbx-1"


async def test_stopping_sandbox_refuses_requests(live: LiveState, client: Bus) -> None:
    """A request to a sandbox that is stopping is refused with `conflict`."""
    await make_record(live, state=S.STOPPING, reason="cancelled")
    assert (await refused(client, REQUESTS[0])).message == "sandbox sbx-1 is ending (cancelled)"


async def test_fleet_has_no_sandbox(live: LiveState, herd: Broker) -> None:
    """An operator, who may access every project, must name one."""
    await make_record(live)
    async with herd.bus(P.OPERATOR) as operator:
        for request in (*REQUESTS, DownloadChunk(sandbox="sbx-1", artifact="dwn-1")):
            problem = await refused(operator, request, "fleet")
            assert (problem.code, problem.field) == (Code.INVALID_FIELD, "project"), request


async def test_client_reaches_no_sandbox_of_another_project(live: LiveState, herd: Broker) -> None:
    """The project of a request is that of its subject, which the broker checks, and never one in its content."""
    await make_record(live)
    async with herd.bus(P.CLIENT, project="p2") as stranger:
        assert (await refused(stranger, REQUESTS[0], "p2")).code is Code.NOT_FOUND


async def test_invalid_reference_is_refused_before_the_worker(live: LiveState, client: Bus) -> None:
    """A reference is refused if it exceeds the cap (which is named), has a wrong chunk count, or is another's."""
    await make_record(live)
    for invalid, code in (
        (reference(MIB + 1), Code.TOO_LARGE),
        (reference(MIB, chunks=7), Code.INVALID_FIELD),
        (reference(MIB, subject="sandherd.v1.artifact.p1.sbx-2.upl-1"), Code.INVALID_FIELD),
        (reference(MIB, subject="sandherd.v1.artifact.p1.sbx-1.>", artifact=">"), Code.INVALID_FIELD),
    ):
        request = Upload(sandbox="sbx-1", transfer="trf-1", path="a", artifact=invalid, sha256=DIGEST)
        problem = await refused(client, request)
        assert (problem.code, problem.field) == (code, "artifact"), invalid
        assert code is not Code.TOO_LARGE or "1048576 (1 MiB)" in problem.message


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"data": b"x", "artifact": reference(1)},
        {"artifact": reference(1, sha256="1" * 64)},
        {"data": b"x" * (INLINE_BYTES + 1)},
        {"data": b"x", "transfer": "another-1"},
        {"data": b"x", "path": "a\0b"},
        {"data": b"x", "mode": 0o4755},
        {"data": b"x", "wait_seconds": 6},
    ],
)
def test_invalid_upload_is_refused_by_the_client(fields: dict[str, Any]) -> None:
    """The client sends no upload without content, with two contents, with a wrong digest, or larger than a request."""
    with pytest.raises(ValidationError):
        Upload(**{"sandbox": "sbx-1", "transfer": "trf-1", "path": "a", "sha256": DIGEST, **fields})


# --- replies of a worker, and missing ones ------------------------------------------------------------------------


async def test_missing_worker_is_reported_with_the_state(live: LiveState, client: Bus) -> None:
    """A request that finds no worker on the subject is `unavailable`, both at the start and after a loss."""
    await make_record(live, state=S.SPAWNING)
    problem = await refused(client, REQUESTS[0])
    assert problem.code is Code.UNAVAILABLE
    assert problem.message == "the worker of sandbox sbx-1 is not connected (state spawning)"


async def test_worker_that_reconnects_in_time_gets_the_request(live: LiveState, client: Bus, worker: Bus) -> None:
    """A request is sent again to a worker that was disconnected for a moment, as when it renews its credential."""
    await make_record(live)
    asking = asyncio.create_task(client.ask(ListFiles(sandbox="sbx-1"), "p1", timeout=PATIENCE))

    async def answer(_question: WorkerListFiles) -> FileList:
        return FileList(entries=[])

    await asyncio.sleep(0)
    await play(worker, WorkerListFiles, answer)
    assert (await asking).entries == []


async def test_sandbox_that_ends_during_a_request_is_a_conflict(live: LiveState, client: Bus, worker: Bus) -> None:
    """The end of the sandbox is reported rather than the missing reply, and the request is not repeated."""
    await make_record(live)
    requested: list[WorkerListFiles] = []

    async def fall_silent(question: WorkerListFiles) -> FileList:
        requested.append(question)
        await change_record(live, state=S.TERMINATED, reason="dead")
        await asyncio.Event().wait()
        raise AssertionError

    await play(worker, WorkerListFiles, fall_silent)
    problem = await refused(client, ListFiles(sandbox="sbx-1"))
    assert (problem.code, problem.message) == (Code.CONFLICT, "sandbox sbx-1 has ended (dead)")
    assert len(requested) == 1


async def test_refusal_of_a_worker_is_passed_on(live: LiveState, client: Bus, worker: Bus) -> None:
    """A worker's refusal is passed on with code, message, field and remedy, but without terminal control characters."""
    await make_record(live)

    async def refuse(_question: WorkerDownload) -> FileRead:
        raise ContractError(Code.REFUSED, "../x leads out of the tree\x1b[2J", field="path", remedy="stay inside")

    await play(worker, WorkerDownload, refuse)
    problem = await refused(client, REQUESTS[-1])
    assert (problem.code, problem.field, problem.remedy) == (Code.REFUSED, "path", "stay inside")
    assert problem.message == "../x leads out of the tree\N{REPLACEMENT CHARACTER}[2J"


async def test_reply_of_another_shape_is_refused(live: LiveState, client: Bus, worker: Bus) -> None:
    """A reply that does not fit the contract reaches no client, and the request is not repeated."""
    await make_record(live)

    async def confuse(_question: WorkerExec) -> FileList:
        return FileList(entries=[])

    await play(worker, WorkerExec, confuse)
    assert (await refused(client, REQUESTS[0])).code is Code.REFUSED


async def test_each_request_reaches_the_worker_with_all_fields(live: LiveState, client: Bus, worker: Bus) -> None:
    """The worker gets every field of the request and the cap; its reply is returned unchanged, bytes included."""
    await make_record(live)
    odd = bytes(range(256))
    state = ExecState(
        exec="exc-1", state="killed", signal=9, output=[ExecOutput(stream="stderr", data=odd)], next_offset=256
    )
    entry = FileEntry(path="ünï code.txt", kind="file", size=3, mode=0o600)
    answers: dict[type[Request[Any]], Any] = {
        WorkerExec: state,
        WorkerExecStatus: state,
        WorkerExecKill: state,
        WorkerListFiles: FileList(entries=[entry], truncated=True),
        WorkerUpload: FileWritten(path="a b", size=256, sha256=DIGEST, done=False, moved=7),
        WorkerDownload: FileRead(path="a b", kind="file", size=256, sha256=DIGEST, data=odd),
    }
    requested: list[Request[Any]] = []
    for kind, answer in answers.items():

        async def send(question: Request[Any], answer: Any = answer) -> Any:
            requested.append(question)
            return answer

        await play(worker, kind, send)
    run: dict[str, Any] = {"command": ["cat", "ü"], "cwd": "a b", "env": {"A": "1"}, "stdin": odd, "timeout_seconds": 7}
    put: dict[str, Any] = {"path": "a b", "data": odd, "sha256": DIGEST, "mode": 0o755, "unpack": True}
    of: dict[str, Any] = {"sandbox": "sbx-1"}
    questions: list[tuple[Request[Any], Request[Any]]] = [
        (Exec(exec="exc-1", wait_seconds=1, **run, **of), WorkerExec(exec="exc-1", wait_seconds=1, **run)),
        (ExecStatus(exec="exc-1", offset=9, **of), WorkerExecStatus(exec="exc-1", offset=9)),
        (ExecKill(exec="exc-1", signal="KILL", **of), WorkerExecKill(exec="exc-1", signal="KILL")),
        (ListFiles(path="x", recursive=True, limit=3, **of), WorkerListFiles(path="x", recursive=True, limit=3)),
        (Upload(transfer="trf-1", **put, **of), WorkerUpload(transfer="trf-1", max_bytes=MIB, **put)),
        (Download(transfer="trf-2", path="a b", **of), WorkerDownload(transfer="trf-2", path="a b", max_bytes=MIB)),
    ]
    found = [await client.ask(question, "p1") for question, _ in questions]
    assert found == list(answers.values())
    assert requested == [handed_on for _, handed_on in questions]


async def test_hundreds_of_waiting_commands_block_no_other_request(live: LiveState, client: Bus, worker: Bus) -> None:
    """While one replica waits for 300 replies, another request is processed."""
    await make_record(live)
    names = {f"exc-{number}" for number in range(300)}
    waiting, all_wait, end = set[str](), asyncio.Event(), asyncio.Event()

    async def hold_back(question: WorkerExecStatus) -> ExecState:
        if not question.offset:
            waiting.add(question.exec)
            if waiting == names:
                all_wait.set()
            await end.wait()
        return ExecState(exec=question.exec, state="exited", complete=True)

    await play(worker, WorkerExecStatus, hold_back)
    polls = asyncio.gather(*(poll(client, name) for name in names))
    waits = asyncio.create_task(all_wait.wait())
    await asyncio.wait((polls, waits), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    assert (polls.done(), waits.done()) == (False, True), polls
    assert (await client.ask(ExecStatus(sandbox="sbx-1", exec="exc-other", offset=1), "p1", timeout=PATIENCE)).complete
    end.set()
    assert {state.exec for state in await polls} == names


async def poll(client: Bus, name: str) -> ExecState:
    """Send the request again until it is answered, as clients do: of 300 long polls the first ones may time out."""
    while True:
        try:
            return await client.ask(ExecStatus(sandbox="sbx-1", exec=name), "p1", timeout=PATIENCE)
        except RefusedError as error:
            if error.problem.code is not Code.UNAVAILABLE:
                raise


async def test_requests_to_a_sandbox_are_counted(live: LiveState, client: Bus, worker: Bus) -> None:
    """Metrics count commands by result, and transfers by bytes in and out."""
    await make_record(live)
    await make_record(live, "sbx-2", state=S.TERMINATED)
    await make_record(live, "sbx-3")

    async def start(question: WorkerExec) -> ExecState:
        return ExecState(exec=question.exec, state="running")

    async def write(question: WorkerUpload) -> FileWritten:
        return FileWritten(path=question.path, size=3, sha256=question.sha256)

    async def read(question: WorkerDownload) -> FileRead:
        return FileRead(path=question.path, kind="file", size=2, sha256=DIGEST, data=b"ab")

    await play(worker, WorkerExec, start)
    await play(worker, WorkerUpload, write)
    await play(worker, WorkerDownload, read)
    await client.ask(REQUESTS[0], "p1")
    for sandbox in ("sbx-2", "sbx-3"):
        await refused(client, Exec(sandbox=sandbox, exec="exc-1", command=["true"]))
    await client.ask(Upload(sandbox="sbx-1", transfer="trf-1", path="a", data=b"abc", sha256=DIGEST), "p1")
    for _ in range(2):  # a chunk that was sent twice is one
        await client.ask(UploadChunk(sandbox="sbx-1", artifact="upl-1", index=0, data=b"12345"), "p1")
    await client.ask(REQUESTS[-1], "p1")
    await client.ask(DownloadChunk(sandbox="sbx-1", artifact="upl-1"), "p1")
    value = live.meters._registry.get_sample_value
    outcomes = [value("sandherd_execs_total", {"outcome": name}) for name in ("started", "refused", "unanswered")]
    assert outcomes == [1, 1, 1]
    assert value("sandherd_uploaded_bytes_total") == 3 + 5
    assert value("sandherd_downloaded_bytes_total") == 2 + 5


async def test_stopping_replica_releases_its_waiting_requests(herd: Broker, client: Bus, worker: Bus) -> None:
    """When a replica stops, its waiting requests get an error to retry at once, and another replica processes them."""
    waiting, end = asyncio.Semaphore(0), asyncio.Event()

    async def hold_back(question: WorkerExecStatus) -> ExecState:
        waiting.release()
        await end.wait()
        return ExecState(exec=question.exec, state="exited", complete=True)

    await play(worker, WorkerExecStatus, hold_back)
    question = ExecStatus(sandbox="sbx-1", exec="exc-1")
    async with access_handlers(herd) as live:
        await make_record(live)
        asking = asyncio.create_task(client.ask(question, "p1", timeout=PATIENCE))
        await waiting.acquire()
    with pytest.raises(RefusedError) as caught:
        await asking
    problem = caught.value.problem
    assert (problem.code, problem.remedy) == (Code.UNAVAILABLE, "retry")
    async with access_handlers(herd):
        end.set()
        assert (await client.ask(question, "p1")).complete
