"""The room without a broker: each transfer and each command once, bounded, and closed for good at the end."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import IO, Any

import pytest

from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import Reply
from sandherd.contracts.requests.worker import (
    WorkerDownload,
    WorkerExec,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerUpload,
)
from sandherd_worker.access import commands as of_commands
from sandherd_worker.access import transfers as of_transfers
from sandherd_worker.access.pieces import Exchange
from sandherd_worker.access.room import MOST_AT_ONCE, Room
from sandherd_worker.emitter import Emitter
from sandherd_worker.families import Families
from sandherd_worker.inbox import Inbox
from sandherd_worker.injected import Injected
from sandherd_worker.line import Line
from sandherd_worker.parts import Parts
from sandherd_worker.processes import Reaper
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import Stop


@pytest.fixture
async def shut(spool: Spool, emitter: Emitter, tmp_path: Path, assignment: Any) -> Any:
    who = assignment(tmp_path)
    who.work_dir.mkdir()
    reaper = Reaper()
    reaper.start()
    inbox = Inbox(who, emitter, Injected(tmp_path / "injected"))
    parts = Parts(
        who=who,
        spool=spool,
        emitter=emitter,
        inbox=inbox,
        line=Line(),
        reaper=reaper,
        families=Families(),
        stop=Stop(),
    )
    opened = Room(parts, SandboxSpec())
    yield opened
    await opened.close()
    reaper.stop()


@pytest.fixture
async def room(shut: Room) -> Room:
    await shut.open()
    return shut


async def ask(room: Room, question: Any) -> Reply[Any]:
    """The reply to a question, as it goes over the wire."""
    document = await room.answer(type(question), question.model_dump_json(exclude_none=True).encode())
    form: Any = Reply  # of which answer is known only here
    reply: Reply[Any] = form[type(question).Answer].model_validate_json(document)
    return reply


async def answer(room: Room, question: Any) -> Any:
    """What it is answered; it is not refused."""
    reply = await ask(room, question)
    assert reply.ok is not None, reply.error
    return reply.ok


def put(name: str, content: bytes, transfer: str) -> WorkerUpload:
    digest = hashlib.sha256(content).hexdigest()
    return WorkerUpload(path=name, data=content, sha256=digest, transfer=transfer, max_bytes=1 << 20)


async def test_bytes_of_any_kind_survive_the_wire(room: Room) -> None:
    """In and out, and as a command's output."""
    content = bytes(range(256)) * 16
    assert (await answer(room, put("a", content, "trf-1"))).size == len(content)
    assert (await answer(room, WorkerDownload(path="a", transfer="trf-2", max_bytes=1 << 20))).data == content
    state = await answer(room, WorkerExec(exec="exc-1", command=["/bin/cat", "a"]))
    output = list(state.output)
    while not state.complete:
        state = await answer(room, WorkerExecStatus(exec="exc-1", offset=state.next_offset))
        output += state.output
    assert b"".join(piece.data for piece in output) == content


async def test_nothing_happens_before_it_is_open(shut: Room, tmp_path: Path) -> None:
    """Who asks early waits; a room that never opens says so to them."""
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


async def test_a_crowd_does_not_keep_itself_out(room: Room) -> None:
    """Of many that ask in the same moment, as many as may be are answered, the others told to ask again."""
    replies = await asyncio.gather(*(ask(room, WorkerListFiles()) for _ in range(3 * MOST_AT_ONCE)))
    refused = [reply.error.code for reply in replies if reply.error is not None]
    assert len(replies) - len(refused) >= MOST_AT_ONCE
    assert set(refused) == {"unavailable"}
    assert (await answer(room, WorkerListFiles())).entries == []


async def test_the_oldest_answers_are_let_go(room: Room, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A transfer that is not kept any more is done again."""
    monkeypatch.setattr(of_transfers, "_MOST_KEPT", 2)
    for number in range(4):
        await ask(room, put(f"f{number}", b"x", f"trf-{number}"))
    (tmp_path / "work/f0").unlink()
    (tmp_path / "work/f3").unlink()
    await ask(room, put("f3", b"x", "trf-3"))
    await ask(room, put("f0", b"x", "trf-0"))
    assert (tmp_path / "work/f0").exists()
    assert not (tmp_path / "work/f3").exists()


async def test_what_could_not_be_done_just_now_is_done_anew(
    room: Room, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The refusal is no answer that is kept: the same transfer, asked for again, is begun again."""
    ways = [ContractError(Code.UNAVAILABLE, "the broker is away"), None]

    async def fetch(_self: Exchange, _reference: Any, _owner: str, file: IO[bytes], *_: Any) -> None:
        if (trouble := ways.pop(0)) is not None:
            raise trouble
        file.write(b"x")

    monkeypatch.setattr(Exchange, "fetch", fetch)
    digest = hashlib.sha256(b"x").hexdigest()
    reference = ArtifactRef(artifact="upl-1", subject="x", size=1, sha256=digest, chunks=1)
    question = WorkerUpload(path="a", artifact=reference, sha256=digest, transfer="trf-1", max_bytes=10)
    refusal = (await ask(room, question)).error
    assert refusal is not None
    assert refusal.code == "unavailable"
    assert (await answer(room, question)).size == 1
    assert (tmp_path / "work/a").read_bytes() == b"x"


async def test_kept_bytes_are_bounded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers with bytes in them are let go earlier."""
    monkeypatch.setattr(of_transfers, "_KEPT_BYTES", 1000)
    await ask(room, put("a", b"x" * 600, "trf-0"))
    for number in range(1, 6):
        await ask(room, WorkerDownload(path="a", transfer=f"trf-{number}", max_bytes=1 << 20))
    transfers = room._handlers[WorkerUpload].__self__  # type: ignore[index,union-attr]  # private
    assert sum(transfer.weight for transfer in transfers._known.values()) <= 1600


async def test_output_of_ended_commands_makes_room_for_more(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes first, and is not found any more."""
    monkeypatch.setattr(of_commands, "KEPT_BYTES", 100)
    for number in range(3):
        script = f"printf '%060d' {number}"
        state = await answer(room, WorkerExec(exec=f"exc-{number}", command=["/bin/sh", "-c", script]))
        assert (state.dropped_bytes, state.next_offset) == (0, 60)
    reply = await ask(room, WorkerExecStatus(exec="exc-0"))
    assert reply.error is not None
    assert reply.error.code == "not_found"
    assert (await answer(room, WorkerExecStatus(exec="exc-2"))).complete


async def test_a_signal_that_comes_before_the_process_is_not_lost(room: Room) -> None:
    """It is sent as soon as there is one."""
    asking = asyncio.create_task(ask(room, WorkerExec(exec="exc-1", command=["/bin/sleep", "600"])))
    await asyncio.sleep(0)
    killed = await answer(room, WorkerExecKill(exec="exc-1", signal="KILL"))
    assert killed.state == "running"
    await asking
    assert (await answer(room, WorkerExecStatus(exec="exc-1"))).state == "killed"


async def test_closing_ends_what_runs_and_what_has_only_begun(room: Room, spool: Spool, said: Any) -> None:
    """Each is said to have ended, and nothing is answered afterwards."""
    await ask(room, WorkerExec(exec="exc-1", command=["/bin/sleep", "600"], wait_seconds=0))
    asking = asyncio.create_task(ask(room, WorkerExec(exec="exc-2", command=["/bin/sleep", "600"], wait_seconds=0)))
    await asyncio.sleep(0)
    await room.close()
    await asyncio.gather(asking, return_exceptions=True)
    told = [event.data.exec_id for event in said(spool) if event.type == "agent.exec_completed"]
    assert sorted(told) == ["exc-1", "exc-2"]
    refused = await ask(room, WorkerExec(exec="exc-3", command=["/bin/true"]))
    assert refused.error is not None
    assert refused.error.code == "conflict"


async def test_a_reference_that_lies_about_its_pieces_costs_nothing(room: Room) -> None:
    """It is refused before any is asked for."""
    digest = "0" * 64
    reference = {"artifact": "upl-1", "subject": "x", "size": 1, "sha256": digest, "chunks": 2**50}
    question = {"path": "a", "artifact": reference, "sha256": digest, "transfer": "trf-1", "max_bytes": 10}
    reply = json.loads(await room.answer(WorkerUpload, json.dumps(question).encode()))
    assert (reply["error"]["code"], reply["error"]["field"]) == ("invalid_field", "artifact.chunks")
