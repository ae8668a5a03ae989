"""Commands and copies against a played service: repeated, out of order, damaged, too large."""

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

from sandherd.client import HerdError, ServiceUnavailableError
from sandherd.client.sandboxes.archive import pack, unpack
from sandherd.client.sandboxes.execution import Execution, command, exit_status
from sandherd.client.sandboxes.transfer import download, source, upload
from sandherd.client.tasks.preflight import refusal
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import (
    INLINE_BYTES,
    ArtifactPiece,
    Catalogue,
    ChunkStored,
    Download,
    DownloadChunk,
    ExecKill,
    ExecOutput,
    ExecState,
    FileRead,
    FileWritten,
    RuntimeView,
    Upload,
    UploadChunk,
)
from sandherd.contracts.specs import RetryPolicy, SandboxLimits, SandboxSpec, TaskSpec

DATA = bytes(range(256)) * 1100
"""Three chunks, the last one short."""
SHA = hashlib.sha256(DATA).hexdigest()
CHUNKS = [DATA[start : start + INLINE_BYTES] for start in range(0, len(DATA), INLINE_BYTES)]
REFERENCE = ArtifactRef(artifact="dwn-a", subject="s", size=len(DATA), sha256=SHA, chunks=3)


class Played:
    """A service that answers from a list of answers for each kind of request; the last one stays."""

    def __init__(self, **answers: list[Any]) -> None:
        self.requested: list[Any] = []
        self._answers = answers

    async def request(self, request: Any, *, timeout: float = 5.0) -> Any:
        self.requested.append(request)
        await asyncio.sleep(0)  # as every real question does
        answers = self._answers[type(request).__name__]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if isinstance(answer, Callable) else answer  # type: ignore[arg-type]  # plays the service


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandherd.client.retry.RETRY_DELAY_SECONDS", 0.0)


def written(done: bool = True, **more: Any) -> FileWritten:  # how the answer has it
    return FileWritten.model_validate({"path": "x", "size": len(DATA), "sha256": SHA, "done": done} | more)


async def test_large_file_is_uploaded_in_repeatable_chunks(tmp_path: Path) -> None:
    """A chunk that was not accepted is sent again; the transfer has one name until it is done."""
    (tmp_path / "x").write_bytes(DATA)
    unavailable = ServiceUnavailableError.named("spawner", "is unavailable")
    service = Played(
        UploadChunk=[unavailable, lambda requested: ChunkStored(index=requested.index)],
        Upload=[written(False), unavailable, written()],
    )
    with source(tmp_path / "x", None) as given:
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # all of a link that it needs
    chunks = {requested.index: requested.data for requested in service.requested if isinstance(requested, UploadChunk)}
    assert [chunks[index] for index in range(3)] == CHUNKS
    requested = [one for one in service.requested if isinstance(one, Upload)]
    assert len(requested) == 3
    assert len({one.transfer for one in requested}) == 1
    assert requested[0].artifact is not None
    assert requested[0].artifact.subject.endswith(requested[0].artifact.artifact)


async def test_upload_with_another_digest_is_an_error(tmp_path: Path) -> None:
    """A digest other than the client's is never success."""
    (tmp_path / "x").write_bytes(b"small")
    service = Played(Upload=[written(sha256="0" * 64, size=5)])
    with source(tmp_path / "x", None) as given, pytest.raises(HerdError, match="other data than was sent"):
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # plays the service


def chunk_replies(*order: int) -> list[ArtifactPiece]:
    return [ArtifactPiece(data=CHUNKS[index], index=index, after=number) for number, index in enumerate(order, 1)]


async def test_chunks_are_placed_by_index() -> None:
    """Chunks come in any order and twice."""
    found = FileRead(path="x", kind="file", size=len(DATA), sha256=SHA, artifact=REFERENCE)
    coming = FileRead(path="x", kind="file", size=len(DATA), done=False)
    service = Played(Download=[coming, found], DownloadChunk=list(chunk_replies(2, 0, 0, 1)))
    out = io.BytesIO()
    await download(service, "sbx-a", "x", out)  # type: ignore[arg-type]  # plays the service
    assert out.getvalue() == DATA
    assert [requested.after for requested in service.requested if isinstance(requested, DownloadChunk)] == [0, 1, 2, 3]
    assert len({requested.transfer for requested in service.requested if isinstance(requested, Download)}) == 1


async def test_download_with_another_digest_is_an_error() -> None:
    """A digest other than the stated one is never success; a missing chunk is named by the service."""
    found = FileRead(path="x", kind="file", size=len(DATA), sha256="0" * 64, artifact=REFERENCE)
    with pytest.raises(HerdError, match="not what the sandbox sent"):
        await download(
            Played(Download=[found], DownloadChunk=list(chunk_replies(0, 1, 2))),  # type: ignore[arg-type]  # plays the service
            "sbx-a",
            "x",
            io.BytesIO(),
        )
    missing = HerdError.of(Code.NOT_FOUND, "chunk 1 of 3 is missing")
    with pytest.raises(HerdError, match="chunk 1 of 3"):
        await download(
            Played(Download=[found], DownloadChunk=[missing]),  # type: ignore[arg-type]  # plays the service
            "sbx-a",
            "x",
            io.BytesIO(),
        )


@pytest.mark.parametrize("folder", [False, True])
def test_file_over_the_cap_is_refused_while_it_is_read(tmp_path: Path, folder: bool) -> None:
    """No byte is sent; the error names the cap."""
    (tmp_path / "x").write_bytes(DATA)
    with (
        pytest.raises(HerdError, match="is 1000 bytes") as raised,
        source(tmp_path if folder else tmp_path / "x", 1000),
    ):
        pass
    assert raised.value.problem.code is Code.TOO_LARGE


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_source_other_than_a_file_is_refused_unread(tmp_path: Path, kind: str) -> None:
    """Opening a pipe would block, and a device never ends."""
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "socket":
            listening.bind(str(path))
        with pytest.raises(HerdError, match="neither a file nor a folder") as raised, source(path, None):
            pass
    assert (raised.value.problem.code, bool(raised.value.problem.remedy)) == (Code.INVALID_FIELD, True)


async def test_file_without_a_size_is_read_once(tmp_path: Path) -> None:
    """One of /proc has other content each time; and no more of it than the cap is read."""
    service = Played(Upload=[lambda requested: written(sha256=requested.sha256, size=len(requested.data))])
    with source(Path("/proc/self/stat"), 1 << 20) as given:
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # plays the service
    [requested] = service.requested
    assert requested.data
    assert hashlib.sha256(requested.data).hexdigest() == requested.sha256 == given.sha256
    with pytest.raises(HerdError, match="is 3 bytes"), source(Path("/proc/self/stat"), 3):
        pass
    (tmp_path / "empty").touch()
    with source(tmp_path / "empty", 3) as given:
        assert given.size == 0


@pytest.mark.parametrize("content", [b"small", DATA])
async def test_growing_file_is_sent_up_to_its_first_size(tmp_path: Path, content: bytes) -> None:
    """No byte beyond the digest's is sent, as for a log."""
    (tmp_path / "log").write_bytes(content)
    service = Played(
        UploadChunk=[lambda requested: ChunkStored(index=requested.index)],
        Upload=[lambda requested: written(sha256=requested.sha256, size=len(content))],
    )
    with source(tmp_path / "log", None) as given:
        with (tmp_path / "log").open("ab") as log:
            log.write(b"more")
        await upload(service, "default", "sbx-a", given, "x")  # type: ignore[arg-type]  # plays the service
    sent = sorted(
        (requested for requested in service.requested if isinstance(requested, UploadChunk)),
        key=lambda requested: requested.index,
    )
    assert (b"".join(requested.data for requested in sent) or service.requested[-1].data) == content


def test_folder_is_packed_and_unpacked_unchanged(tmp_path: Path) -> None:
    """Files, modes, empty folders and links are preserved; a link is never followed."""
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


def test_unreadable_source_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a folder below that cannot be read is never left out silently."""
    (tmp_path / "tree" / "closed").mkdir(parents=True)
    (tmp_path / "tree" / "secret").touch()
    scandir, opened = os.scandir, os.open

    def refuse_folder(path: Path) -> Any:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    def refuse_file(path: str, *rest: int, **more: int) -> int:
        if str(path).endswith("/secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest, **more)

    for name, refuse in (("scandir", refuse_folder), ("open", refuse_file)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refuse)  # root reads everything
            with pytest.raises(HerdError, match="Permission denied"), source(tmp_path / "tree", None):
                pass


def test_file_that_shrinks_while_packed_is_an_error(tmp_path: Path) -> None:
    """Other bytes than it had are never sent."""
    (tmp_path / "a").write_bytes(b"a" * 100_000)

    class Shrinking(io.BytesIO):
        def write(self, data: Any) -> int:
            (tmp_path / "a").write_bytes(b"")
            return super().write(data)

    with pytest.raises(OSError, match="unexpected end of data"):
        pack(tmp_path, Shrinking(), None)


@pytest.mark.parametrize("name", ["../out", "/tmp/out"])
def test_archive_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """A sandbox's archive is not trusted; nothing of it is left, and the remedy names another way."""
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
    """Reading continues at the last offset, over a lost reply, until all of it is here."""
    first = state("running", output=[ExecOutput(stream="stdout", data=b"a")], next_offset=1)
    last = state("exited", exit_code=3, output=[ExecOutput(stream="stderr", data=b"b")], next_offset=2, complete=True)
    unavailable = ServiceUnavailableError.named("spawner", "is unavailable")
    service = Played(Exec=[first], ExecStatus=[unavailable, last])
    execution = await Execution.start(service, command("sbx-a", ["x"]))  # type: ignore[arg-type]  # plays the service
    assert [(piece.stream, piece.data) async for piece in execution.output()] == [("stdout", b"a"), ("stderr", b"b")]
    assert [requested.offset for requested in service.requested[1:]] == [1, 1]
    assert execution.state == last


async def test_endless_command_is_killed() -> None:
    """An interrupt is sent first, then a kill."""
    service = Played(Exec=[state("running")], ExecStatus=[state("running")], ExecKill=[state("running")])
    execution = await Execution.start(service, command("sbx-a", ["x"]))  # type: ignore[arg-type]  # plays the service
    await execution.end(grace=0)
    assert [requested.signal for requested in service.requested if isinstance(requested, ExecKill)] == ["INT", "KILL"]


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
def test_exit_status_is_as_in_a_shell(found: ExecState, status: int) -> None:
    """A signal, `timeout` and an unexecutable program have a shell's numbers."""
    assert exit_status(found) == status


def test_oversized_standard_input_is_refused() -> None:
    """The error has the remedy."""
    with pytest.raises(HerdError, match="stdin") as raised:
        command("sbx-a", ["x"], stdin=b"x" * (INLINE_BYTES + 1))
    assert "sandherd cp" in raised.value.line


HERE = Catalogue(
    runtimes=[RuntimeView(runtime="process")],
    harnesses=["command"],
    caps=SandboxLimits(memory_mb=1024),
    defaults=SandboxLimits(memory_mb=512),
    max_attempts=5,
    max_ttl_seconds=3600,
    max_file_bytes=1000,
)
TASK: dict[str, Any] = {"text": "x", "harness": {"argv": ["true"]}}


@pytest.mark.parametrize(
    ("spec", "field", "expected_text"),
    [
        (SandboxSpec(runtime="moon"), "spec.runtime", "there is: process"),
        (SandboxSpec(profile="large"), "spec.profile", "there is: none"),
        (SandboxSpec(limits=SandboxLimits(memory_mb=2048)), "spec.limits.memory_mb", "at most 1024"),
        (SandboxSpec(ttl_seconds=7200), "spec.ttl_seconds", "at most 1h"),
        (TaskSpec(**TASK, retry=RetryPolicy(max_attempts=6)), "spec.retry.max_attempts", "at most 5"),
    ],
)
def test_unavailable_option_is_refused_with_the_available_ones(
    spec: SandboxSpec, field: str, expected_text: str
) -> None:
    """The error has the field, what is available, and a remedy."""
    refused = refusal(spec, HERE)
    assert refused is not None
    assert refused.problem.field == field
    assert expected_text in refused.line
    assert refused.problem.remedy


def test_available_options_are_accepted() -> None:
    """The client refuses nothing that the spawner would accept."""
    assert refusal(SandboxSpec(), HERE) is None
    assert refusal(TaskSpec(**TASK, runtime="process", ttl_seconds=3600), HERE) is None
