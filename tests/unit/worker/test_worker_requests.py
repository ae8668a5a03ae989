"""Requests to a worker without a broker: each transfer and command once, bounded, and none after the end."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import Reply
from sandherd.contracts.requests.terminal import TerminalSize
from sandherd.contracts.requests.worker import (
    WorkerDownload,
    WorkerExec,
    WorkerExecInput,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerUpload,
)
from sandherd_worker.access import commands as of_commands
from sandherd_worker.access import transfers as of_transfers
from sandherd_worker.access.artifact_client import ArtifactClient
from sandherd_worker.access_server import MAX_CONCURRENT, AccessServer
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.emitter import Emitter
from sandherd_worker.inbox import DeliveredMessages, Inbox
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.spool import Spool
from sandherd_worker.worker_exit import StopRequest
from sandherd_worker.worker_resources import WorkerResources
from tests.polling import eventually


class Line:
    """A connection that holds what was subscribed to, and what was published."""

    def __init__(self) -> None:
        self.client = self
        self.callbacks: dict[str, Callable[[Msg], Awaitable[None]]] = {}
        self.published: list[bytes] = []

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> None:
        self.callbacks[subject] = cb

    async def publish(self, _subject: str, payload: bytes, **_: Any) -> None:
        self.published.append(payload)


@pytest.fixture
async def shut(spool: Spool, emitter: Emitter, tmp_path: Path, assignment: Any) -> Any:
    who = assignment(tmp_path)
    who.work_dir.mkdir()
    reaper = Reaper()
    reaper.start()
    inbox = Inbox(who, emitter, DeliveredMessages(tmp_path / "injected"))
    resources = WorkerResources(
        assignment=who,
        spool=spool,
        emitter=emitter,
        inbox=inbox,
        line=CurrentConnection(),
        reaper=reaper,
        ownership=ProcessOwnership(),
        stop=StopRequest(),
    )
    opened = AccessServer(resources, SandboxSpec())
    yield opened
    await opened.close()
    reaper.stop()


@pytest.fixture
async def opened_server(shut: AccessServer) -> AccessServer:
    await shut.open()
    return shut


async def ask(opened_server: AccessServer, question: Any) -> Reply[Any]:
    """The reply to a question, as it goes over the wire."""
    document = await opened_server.handle(type(question), question.model_dump_json(exclude_none=True).encode())
    form: Any = Reply  # of which answer is known only here
    reply: Reply[Any] = form[type(question).Answer].model_validate_json(document)
    return reply


async def answer(opened_server: AccessServer, question: Any) -> Any:
    """What it is answered; it is not refused."""
    reply = await ask(opened_server, question)
    assert reply.ok is not None, reply.error
    return reply.ok


def put(name: str, content: bytes, transfer: str) -> WorkerUpload:
    digest = hashlib.sha256(content).hexdigest()
    return WorkerUpload(path=name, data=content, sha256=digest, transfer=transfer, max_bytes=1 << 20)


async def test_bytes_of_any_kind_survive_the_wire(opened_server: AccessServer) -> None:
    """Uploads, downloads and a command's output are unchanged."""
    content = bytes(range(256)) * 16
    assert (await answer(opened_server, put("a", content, "trf-1"))).size == len(content)
    assert (await answer(opened_server, WorkerDownload(path="a", transfer="trf-2", max_bytes=1 << 20))).data == content
    state = await answer(opened_server, WorkerExec(exec="exc-1", command=["/bin/cat", "a"]))
    output = list(state.output)
    while not state.complete:
        state = await answer(opened_server, WorkerExecStatus(exec="exc-1", offset=state.next_offset))
        output += state.output
    assert b"".join(piece.data for piece in output) == content


async def test_closed_room_delays_requests_until_it_opens(shut: AccessServer, tmp_path: Path) -> None:
    """Early requests wait; a server that never opens refuses them."""
    early = asyncio.create_task(ask(shut, put("a", b"x", "trf-1")))
    late = asyncio.create_task(ask(shut, WorkerExec(exec="exc-1", command=["/bin/touch", "b"])))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not early.done()
    assert not late.done()
    await shut.close()
    refused = [(await asking).error for asking in (early, late)]
    assert [problem and problem.code for problem in refused] == ["conflict", "conflict"]
    assert list((tmp_path / "work").iterdir()) == []


async def test_requests_over_the_limit_are_refused_for_now(opened_server: AccessServer) -> None:
    """Requests up to the limit are processed concurrently, and the others get an error that permits a retry."""
    replies = await asyncio.gather(*(ask(opened_server, WorkerListFiles()) for _ in range(3 * MAX_CONCURRENT)))
    refused = [reply.error.code for reply in replies if reply.error is not None]
    assert len(replies) - len(refused) >= MAX_CONCURRENT
    assert set(refused) == {"unavailable"}
    assert (await answer(opened_server, WorkerListFiles())).entries == []


async def test_misdirected_replies_use_no_place_before_the_start(shut: AccessServer) -> None:
    """More messages without a reply subject than may wait do not block a later request, which is processed."""
    line: Any = Line()
    await shut.serve(line)
    receive = line.callbacks["sandherd.v1.request.worker.list_files.p1.sbx-1"]
    with capture_logs() as logged:
        for _ in range(2 * MAX_CONCURRENT):
            await receive(Msg(_client=line, subject="x", data=b'{"stream": "EVENTS", "seq": 1}'))
    await receive(Msg(_client=line, subject="x", reply="y", data=b"{}"))
    assert line.published == []
    await shut.open()
    (reply,) = await eventually(lambda: line.published, "the reply")
    assert json.loads(reply) == {"ok": {"entries": [], "truncated": False}}
    assert [entry["ignored"] for entry in logged] == [1, 10, 100]


async def test_oldest_replies_are_dropped(
    opened_server: AccessServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A transfer whose reply was dropped is done again."""
    monkeypatch.setattr(of_transfers, "_MAX_CACHED", 2)
    for number in range(4):
        await ask(opened_server, put(f"f{number}", b"x", f"trf-{number}"))
    (tmp_path / "work/f0").unlink()
    (tmp_path / "work/f3").unlink()
    await ask(opened_server, put("f3", b"x", "trf-3"))
    await ask(opened_server, put("f0", b"x", "trf-0"))
    assert (tmp_path / "work/f0").exists()
    assert not (tmp_path / "work/f3").exists()


async def test_failed_transfer_is_retried_on_a_new_request(
    opened_server: AccessServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failure is not cached: the same transfer requested again starts again."""
    ways = [ContractError(Code.UNAVAILABLE, "the broker is unavailable"), None]

    async def fetch(_self: ArtifactClient, _reference: Any, _owner: str, file: IO[bytes], *_: Any) -> None:
        if (trouble := ways.pop(0)) is not None:
            raise trouble
        file.write(b"x")

    monkeypatch.setattr(ArtifactClient, "fetch", fetch)
    digest = hashlib.sha256(b"x").hexdigest()
    reference = ArtifactRef(artifact="upl-1", subject="x", size=1, sha256=digest, chunks=1)
    question = WorkerUpload(path="a", artifact=reference, sha256=digest, transfer="trf-1", max_bytes=10)
    refusal = (await ask(opened_server, question)).error
    assert refusal is not None
    assert refusal.code == "unavailable"
    assert (await answer(opened_server, question)).size == 1
    assert (tmp_path / "work/a").read_bytes() == b"x"


async def test_cached_bytes_are_bounded(opened_server: AccessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached replies with bytes are dropped earlier than others."""
    monkeypatch.setattr(of_transfers, "_CACHE_BYTES", 1000)
    await ask(opened_server, put("a", b"x" * 600, "trf-0"))
    for number in range(1, 6):
        await ask(opened_server, WorkerDownload(path="a", transfer=f"trf-{number}", max_bytes=1 << 20))
    transfers = opened_server._handlers[WorkerUpload].__self__  # type: ignore[index,union-attr]  # private
    assert sum(transfer.content_bytes for transfer in transfers._known.values()) <= 1600


async def test_output_of_ended_commands_is_dropped_for_new_ones(
    opened_server: AccessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest output is dropped first, and is then not found."""
    monkeypatch.setattr(of_commands, "MAX_TOTAL_BYTES", 100)
    for number in range(3):
        script = f"printf '%060d' {number}"
        state = await answer(opened_server, WorkerExec(exec=f"exc-{number}", command=["/bin/sh", "-c", script]))
        assert (state.dropped_bytes, state.next_offset) == (0, 60)
    reply = await ask(opened_server, WorkerExecStatus(exec="exc-0"))
    assert reply.error is not None
    assert reply.error.code == "not_found"
    assert (await answer(opened_server, WorkerExecStatus(exec="exc-2"))).complete


async def test_signal_before_the_process_exists_is_sent_later(opened_server: AccessServer) -> None:
    """The signal is sent as soon as there is a process."""
    asking = asyncio.create_task(ask(opened_server, WorkerExec(exec="exc-1", command=["/bin/sleep", "600"])))
    await asyncio.sleep(0)
    killed = await answer(opened_server, WorkerExecKill(exec="exc-1", signal="KILL"))
    assert killed.state == "running"
    await asking
    assert (await answer(opened_server, WorkerExecStatus(exec="exc-1"))).state == "killed"


async def test_close_ends_running_and_starting_commands(
    opened_server: AccessServer, spool: Spool, published_of: Any
) -> None:
    """Each command is reported as ended, and no reply follows."""
    await ask(opened_server, WorkerExec(exec="exc-1", command=["/bin/sleep", "600"], wait_seconds=0))
    asking = asyncio.create_task(
        ask(opened_server, WorkerExec(exec="exc-2", command=["/bin/sleep", "600"], wait_seconds=0))
    )
    await asyncio.sleep(0)
    await opened_server.close()
    await asyncio.gather(asking, return_exceptions=True)
    exec_ids = [event.data.exec_id for event in published_of(spool) if event.type == "agent.exec_completed"]
    assert sorted(exec_ids) == ["exc-1", "exc-2"]
    refused = await ask(opened_server, WorkerExec(exec="exc-3", command=["/bin/true"]))
    assert refused.error is not None
    assert refused.error.code == "conflict"


async def test_reference_with_false_chunk_count_is_refused(opened_server: AccessServer) -> None:
    """The reference is refused before any chunk is requested."""
    digest = "0" * 64
    reference = {"artifact": "upl-1", "subject": "x", "size": 1, "sha256": digest, "chunks": 2**50}
    question = {"path": "a", "artifact": reference, "sha256": digest, "transfer": "trf-1", "max_bytes": 10}
    reply = json.loads(await opened_server.handle(WorkerUpload, json.dumps(question).encode()))
    assert (reply["error"]["code"], reply["error"]["field"]) == ("invalid_field", "artifact.chunks")


async def test_command_with_a_terminal_gets_input_and_its_size(opened_server: AccessServer) -> None:
    """A command with a terminal reads what is typed, once, and sees the size that was set last."""
    script = "stty -echo; test -t 0 && test -t 1; echo tty $?; read line; stty size; echo got $line; exit 3"
    size = TerminalSize(rows=20, columns=70)
    state = await answer(opened_server, WorkerExec(exec="exc-1", command=["/bin/sh", "-c", script], terminal=size))
    output = list(state.output)
    while b"tty 0" not in b"".join(piece.data for piece in output):
        state = await answer(opened_server, WorkerExecStatus(exec="exc-1", offset=state.next_offset))
        output += state.output
    typed = WorkerExecInput(exec="exc-1", data=b"he", size=TerminalSize(rows=30, columns=90))
    assert [(await answer(opened_server, typed)).accepted for _ in range(2)] == [2, 2]
    assert (await answer(opened_server, WorkerExecInput(exec="exc-1", offset=1, data=b"ello\n"))).accepted == 6
    while not state.complete:
        state = await answer(opened_server, WorkerExecStatus(exec="exc-1", offset=state.next_offset))
        output += state.output
    shown = b"".join(piece.data for piece in output)
    assert b"30 90" in shown
    assert b"got hello" in shown
    assert state.exit_code == 3
    late = await ask(opened_server, WorkerExecInput(exec="exc-1", offset=6, data=b"x"))
    assert late.error is not None
    assert late.error.code is Code.CONFLICT
