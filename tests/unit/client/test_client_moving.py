"""Commands and copies against a played service: asked again, out of order, damaged, too large."""

import asyncio
import hashlib
import io
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import HerdError, ServiceAwayError
from sandherd.client.allowed import refusal
from sandherd.client.archiving import pack, unpack
from sandherd.client.copying import download, source, upload
from sandherd.client.executing import Execution, command, exit_status
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import (
    INLINE_BYTES,
    ArtifactPiece,
    Catalogue,
    Download,
    DownloadChunk,
    ExecKill,
    ExecOutput,
    ExecState,
    FileRead,
    FileWritten,
    Held,
    RuntimeView,
    Upload,
    UploadChunk,
)
from sandherd.contracts.specs import Limits, Retry, SandboxSpec, TaskSpec

DATA = bytes(range(256)) * 1100
"""Three pieces, the last one short."""
SHA = hashlib.sha256(DATA).hexdigest()
PIECES = [DATA[start : start + INLINE_BYTES] for start in range(0, len(DATA), INLINE_BYTES)]
REFERENCE = ArtifactRef(artifact="dwn-a", subject="s", size=len(DATA), sha256=SHA, chunks=3)


class Played:
    """A service that answers from a list of answers for each kind of request; the last one stays."""

    def __init__(self, **answers: list[Any]) -> None:
        self.asked: list[Any] = []
        self._answers = answers

    async def ask(self, request: Any, *, timeout: float = 5.0) -> Any:
        self.asked.append(request)
        await asyncio.sleep(0)  # as every real question does
        answers = self._answers[type(request).__name__]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if isinstance(answer, Callable) else answer  # type: ignore[arg-type]  # plays the service


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandherd.client.persisting.REST", 0.0)


def written(done: bool = True, **more: Any) -> FileWritten:  # how the answer has it
    return FileWritten.model_validate({"path": "x", "size": len(DATA), "sha256": SHA, "done": done} | more)


async def test_a_large_file_goes_in_pieces_and_each_is_repeated(tmp_path: Path) -> None:
    """A piece that nobody took is sent again; the transfer is asked for under one name until it is done."""
    (tmp_path / "x").write_bytes(DATA)
    away = ServiceAwayError.named("spawner", "is not there")
    service = Played(
        UploadChunk=[away, lambda asked: Held(index=asked.index)], Upload=[written(False), away, written()]
    )
    with source(tmp_path / "x", None) as given:
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # all of a link that it needs
    chunks = {asked.index: asked.data for asked in service.asked if isinstance(asked, UploadChunk)}
    assert [chunks[index] for index in range(3)] == PIECES
    asked = [one for one in service.asked if isinstance(one, Upload)]
    assert len(asked) == 3
    assert len({one.transfer for one in asked}) == 1
    assert asked[0].artifact is not None
    assert asked[0].artifact.subject.endswith(asked[0].artifact.artifact)


async def test_what_was_written_otherwise_is_an_error(tmp_path: Path) -> None:
    """A digest that is not ours is never success."""
    (tmp_path / "x").write_bytes(b"small")
    service = Played(Upload=[written(sha256="0" * 64, size=5)])
    with source(tmp_path / "x", None) as given, pytest.raises(HerdError, match="not what was sent"):
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # plays the service


def pieces(*order: int) -> list[ArtifactPiece]:
    return [ArtifactPiece(data=PIECES[index], index=index, after=number) for number, index in enumerate(order, 1)]


async def test_pieces_come_in_any_order_and_twice() -> None:
    """Each stands where its number says."""
    found = FileRead(path="x", kind="file", size=len(DATA), sha256=SHA, artifact=REFERENCE)
    coming = FileRead(path="x", kind="file", size=len(DATA), done=False)
    service = Played(Download=[coming, found], DownloadChunk=list(pieces(2, 0, 0, 1)))
    out = io.BytesIO()
    await download(service, "sbx-a", "x", out)  # type: ignore[arg-type]  # plays the service
    assert out.getvalue() == DATA
    assert [asked.after for asked in service.asked if isinstance(asked, DownloadChunk)] == [0, 1, 2, 3]
    assert len({asked.transfer for asked in service.asked if isinstance(asked, Download)}) == 1


async def test_what_came_otherwise_is_an_error() -> None:
    """A digest that is not what the sandbox said is never success; a piece that is missing is named by the service."""
    found = FileRead(path="x", kind="file", size=len(DATA), sha256="0" * 64, artifact=REFERENCE)
    with pytest.raises(HerdError, match="not what the sandbox sent"):
        await download(
            Played(Download=[found], DownloadChunk=list(pieces(0, 1, 2))),  # type: ignore[arg-type]  # plays the service
            "sbx-a",
            "x",
            io.BytesIO(),
        )
    missing = HerdError.of(Code.NOT_FOUND, "piece 1 of 3 is missing")
    with pytest.raises(HerdError, match="piece 1 of 3"):
        await download(
            Played(Download=[found], DownloadChunk=[missing]),  # type: ignore[arg-type]  # plays the service
            "sbx-a",
            "x",
            io.BytesIO(),
        )


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_over_the_cap_is_refused_while_it_is_read(tmp_path: Path, folder: bool) -> None:
    """Before anything is sent; the cap is named."""
    (tmp_path / "x").write_bytes(DATA)
    with (
        pytest.raises(HerdError, match="1000 bytes at the most") as raised,
        source(tmp_path if folder else tmp_path / "x", 1000),
    ):
        pass
    assert raised.value.problem.code is Code.TOO_LARGE


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_is_no_file_is_refused_and_not_read(tmp_path: Path, kind: str) -> None:
    """A pipe would never be opened, and a device never end."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "socket":
            listening.bind(str(path))
        with pytest.raises(HerdError, match="neither a file nor a folder") as raised, source(path, None):
            pass
    assert (raised.value.problem.code, bool(raised.value.problem.remedy)) == (Code.INVALID_FIELD, True)


async def test_a_file_without_a_size_is_read_once(tmp_path: Path) -> None:
    """One of /proc has other content each time; and no more of it than the cap."""
    service = Played(Upload=[lambda asked: written(sha256=asked.sha256, size=len(asked.data))])
    with source(Path("/proc/self/stat"), 1 << 20) as given:
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # plays the service
    [asked] = service.asked
    assert asked.data
    assert hashlib.sha256(asked.data).hexdigest() == asked.sha256 == given.sha256
    with pytest.raises(HerdError, match="3 bytes at the most"), source(Path("/proc/self/stat"), 3):
        pass
    (tmp_path / "empty").touch()
    with source(tmp_path / "empty", 3) as given:
        assert given.size == 0


@pytest.mark.parametrize("content", [b"small", DATA])
async def test_of_a_file_that_grows_meanwhile_what_was_there_is_sent(tmp_path: Path, content: bytes) -> None:
    """As a log does: no byte more than its digest is of."""
    (tmp_path / "log").write_bytes(content)
    service = Played(
        UploadChunk=[lambda asked: Held(index=asked.index)],
        Upload=[lambda asked: written(sha256=asked.sha256, size=len(content))],
    )
    with source(tmp_path / "log", None) as given:
        with (tmp_path / "log").open("ab") as log:
            log.write(b"more")
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # plays the service
    sent = sorted((asked for asked in service.asked if isinstance(asked, UploadChunk)), key=lambda asked: asked.index)
    assert (b"".join(asked.data for asked in sent) or service.asked[-1].data) == content


def test_a_folder_comes_back_as_it_was(tmp_path: Path) -> None:
    """Files, modes, empty folders and links; a link is never followed."""
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("run.sh")
    out = io.BytesIO()
    pack(tree, out, None)
    out.seek(0)
    unpack(out, tmp_path / "back")
    assert (tmp_path / "back" / "empty").is_dir()
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back" / "link").readlink() == Path("run.sh")


@pytest.mark.parametrize("name", ["../out", "/tmp/out"])
def test_an_archive_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """What comes out of a sandbox is not trusted; nothing of it is left, and it is said how else to have it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    out.seek(0)
    with pytest.raises(HerdError, match="can't be unpacked") as raised:
        unpack(out, tmp_path / "back")
    assert "tar cf" in raised.value.line
    assert not list(tmp_path.iterdir())


def state(kind: str, **more: Any) -> ExecState:
    return ExecState.model_validate({"exec": "exc-a", "state": kind, **more})


async def test_output_is_read_to_its_end() -> None:
    """From where the last answer ended, over an answer that did not come, until all of it is here."""
    first = state("running", output=[ExecOutput(stream="stdout", data=b"a")], next_offset=1)
    last = state("exited", exit_code=3, output=[ExecOutput(stream="stderr", data=b"b")], next_offset=2, complete=True)
    away = ServiceAwayError.named("spawner", "is not there")
    service = Played(Exec=[first], ExecStatus=[away, last])
    execution = await Execution.start(service, command("sbx-a", ["x"]))  # type: ignore[arg-type]  # plays the service
    assert [(piece.stream, piece.data) async for piece in execution.output()] == [("stdout", b"a"), ("stderr", b"b")]
    assert [asked.offset for asked in service.asked[1:]] == [1, 1]
    assert execution.state == last


async def test_a_command_that_does_not_end_is_killed() -> None:
    """First as Ctrl-C would, then for good."""
    service = Played(Exec=[state("running")], ExecStatus=[state("running")], ExecKill=[state("running")])
    execution = await Execution.start(service, command("sbx-a", ["x"]))  # type: ignore[arg-type]  # plays the service
    await execution.end(grace=0)
    assert [asked.signal for asked in service.asked if isinstance(asked, ExecKill)] == ["INT", "KILL"]


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (state("exited", exit_code=0), 0),
        (state("exited", exit_code=7), 7),
        (state("exited", signal=9), 137),
        (state("killed", signal=15), 143),
        (state("timed_out", signal=9), 124),
        (state("failed", error="no such file"), 126),
    ],
)
def test_an_exit_status_is_as_a_shell_has_it(found: ExecState, status: int) -> None:
    """Its own, or what a shell says of a signal, of `timeout`, and of what can't be run."""
    assert exit_status(found) == status


def test_too_much_standard_input_is_refused_here() -> None:
    """With what to do instead."""
    with pytest.raises(HerdError, match="stdin") as raised:
        command("sbx-a", ["x"], stdin=b"x" * (INLINE_BYTES + 1))
    assert "sandherd cp" in raised.value.line


HERE = Catalogue(
    runtimes=[RuntimeView(runtime="process")],
    harnesses=["command"],
    caps=Limits(memory_mb=1024),
    defaults=Limits(memory_mb=512),
    max_attempts=5,
    max_ttl_seconds=3600,
    max_file_bytes=1000,
)
TASK: dict[str, Any] = {"text": "x", "harness": {"argv": ["true"]}}


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        (SandboxSpec(runtime="moon"), "spec.runtime", "there is: process"),
        (SandboxSpec(profile="large"), "spec.profile", "there is: none"),
        (SandboxSpec(limits=Limits(memory_mb=2048)), "spec.limits.memory_mb", "at most 1024"),
        (SandboxSpec(ttl_seconds=7200), "spec.ttl_seconds", "at most 3600"),
        (TaskSpec(**TASK, retry=Retry(max_attempts=6)), "spec.retry.max_attempts", "at most 5"),
    ],
)
def test_what_is_not_to_be_had_here_is_said_with_what_is(spec: SandboxSpec, field: str, says: str) -> None:
    """The field, what is allowed, and what helps."""
    refused = refusal(spec, HERE)
    assert refused is not None
    assert refused.problem.field == field
    assert says in refused.line
    assert refused.problem.remedy


def test_what_is_to_be_had_is_not_refused() -> None:
    """Nothing is refused here that the spawner would take."""
    assert refusal(SandboxSpec(), HERE) is None
    assert refusal(TaskSpec(**TASK, runtime="process", ttl_seconds=3600), HERE) is None
