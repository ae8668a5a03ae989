"""Uploads and downloads of files and folders, requested of a real worker over a real broker."""

import asyncio
import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.errors import Problem
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    INLINE_BYTES,
    FileRead,
    FileWritten,
    WorkerDownload,
    WorkerListFiles,
    WorkerUpload,
)

MEBIBYTE = 1024 * 1024
CAP = 16 * MEBIBYTE


@pytest.fixture
async def bare(sandbox: Any) -> Any:
    """A sandbox without a task, whose worker runs."""
    sandbox.bare()
    return await sandbox.start()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def upload(sandbox: Any, path: str, content: bytes, **fields: Any) -> FileWritten:
    """Upload as the client does: the request is repeated until it is done."""
    given: dict[str, Any] = {"data": content}
    if len(content) > INLINE_BYTES:
        given = {"artifact": await sandbox.put_aside(content)}
    given = {"max_bytes": CAP, "sha256": sha256(content), "transfer": new_name("trf"), **given, **fields}
    question = WorkerUpload(path=path, **given)
    while True:
        answer: FileWritten = await sandbox.ask(question)
        if answer.done:
            return answer
        assert answer.moved <= answer.size


async def download(sandbox: Any, path: str) -> tuple[FileRead, bytes]:
    """Download as the client does."""
    question = WorkerDownload(max_bytes=CAP, path=path, transfer=new_name("trf"))
    while not (answer := await sandbox.ask(question)).done:
        assert answer.data is None
    content = answer.data if answer.artifact is None else await sandbox.taken(answer.artifact)
    assert (len(content), sha256(content)) == (answer.size, answer.sha256)
    return answer, content


async def refusal(asking: Any) -> Problem:
    with pytest.raises(RefusedError) as caught:
        await asking
    return caught.value.problem


def archive(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """Create a tar archive of these files, some of which are links."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if name in (links or {}):
                info.type, info.linkname = tarfile.SYMTYPE, (links or {})[name]
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


async def test_file_of_any_size_is_transferred_unchanged(bare: Any, eventually: Any) -> None:
    """A file arrives byte for byte, with its mode, in created folders, and is published as events."""
    sizes = (0, 1, INLINE_BYTES, INLINE_BYTES + 1, 5 * MEBIBYTE, 5 * MEBIBYTE + 7)
    for size in sizes:
        content, name = os.urandom(size), f"deep/{size}/größe ✓.bin"
        written = await upload(bare, name, content, mode=0o750)
        assert (written.size, written.sha256, written.files) == (size, sha256(content), 1)
        path = bare.work / name
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o750
        answer, taken = await download(bare, name)
        assert taken == content
        assert (answer.kind, answer.mode) == ("file", 0o750)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

        async def published(size: int = size, digest: str | None = answer.sha256, path: str = answer.path) -> bool:
            """Wait until the broker has both events of this file."""
            transfer_events = [event.data for event in await bare.events("file_uploaded", "file_downloaded")]
            about = [(data.type, data.size, data.sha256) for data in transfer_events if data.path == path]
            return about == [(f"agent.file_{what}", size, digest) for what in ("uploaded", "downloaded")]

        await eventually(published, f"the events of {size} bytes")


async def test_transfer_runs_once_however_often_requested(bare: Any) -> None:
    """Repeated requests have the same reply and one event; other fields under the same name are refused."""
    question = WorkerUpload(max_bytes=CAP, path="a", data=b"x", sha256=sha256(b"x"), transfer="trf-1")
    answers = await asyncio.gather(*(bare.ask(question) for _ in range(5)))
    assert {answer.model_dump_json() for answer in answers} == {answers[0].model_dump_json()}
    (bare.work / "a").write_text("changed")
    await bare.ask(question)
    assert (bare.work / "a").read_text() == "changed"
    assert len(await bare.events("file_uploaded")) == 1
    other = WorkerUpload(max_bytes=CAP, path="b", data=b"x", sha256=sha256(b"x"), transfer="trf-1")
    problem = await refusal(bare.ask(other))
    assert (problem.code, problem.field) == ("conflict", "transfer")


async def test_folder_is_transferred_as_an_archive(bare: Any) -> None:
    """An archive is merged into an existing folder, file by file; links stay links."""
    await upload(bare, "site", archive({"index.html": b"<p>", "css/a.css": b"a", "ü/b": b"b"}), unpack=True)
    (bare.work / "site/own").write_text("mine")
    written = await upload(bare, "site", archive({"css/a.css": b"new", "css/c.css": b"c"}), unpack=True)
    assert written.files == 2
    (bare.work / "site/link").symlink_to("/etc/passwd")
    answer, content = await download(bare, "site")
    assert answer.kind == "folder"
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {info.name: tar.extractfile(info).read() for info in tar if info.isreg()}  # type: ignore[union-attr]  # all are files
        links = {info.name: info.linkname for info in tar.getmembers() if info.issym()}
    assert found == {"css/a.css": b"new", "css/c.css": b"c", "index.html": b"<p>", "own": b"mine", "ü/b": b"b"}
    assert links == {"link": "/etc/passwd"}


async def test_folder_with_links_that_lead_out_is_uploaded(bare: Any) -> None:
    """Links that lead out exist in the sandbox, and nothing is written through them."""
    files = {"a/one": b"1", "m/python": b"", "m/up": b"", "z/two": b"2"}
    links = {"m/python": "/usr/bin/python3", "m/up": "../.."}
    for _ in range(2):
        assert (await upload(bare, "venv", archive(files, links), unpack=True)).files == 4
        assert ((bare.work / "venv/a/one").read_bytes(), (bare.work / "venv/z/two").read_bytes()) == (b"1", b"2")
        assert {name: str((bare.work / "venv" / name).readlink()) for name in links} == links
    problem = await refusal(upload(bare, "venv", archive({"m/up/evil": b"x"}), unpack=True))
    assert (problem.code, bool(problem.remedy)) == ("conflict", True)
    assert not (bare.work / "evil").exists()
    assert [entry.name for entry in bare.work.iterdir()] == ["venv"]


async def test_large_folder_is_downloaded_as_artifacts(bare: Any) -> None:
    """A large folder of any content is transferred like a large file."""
    for number in range(40):
        (bare.work / f"{number}.bin").write_bytes(os.urandom(MEBIBYTE // 10))
    answer, content = await download(bare, ".")
    assert answer.artifact is not None
    assert answer.artifact.media_type == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert len(tar.getmembers()) == 40


async def test_path_never_leads_out_of_the_work_tree(bare: Any) -> None:
    """`..`, an absolute path, a link, a chain of links and a cycle are refused."""
    elsewhere = bare.work.parent / "elsewhere"
    elsewhere.mkdir()
    for name, target in {"out": str(elsewhere), "chain": "link", "link": "..", "up": ".", "round": "round"}.items():
        (bare.work / name).symlink_to(target)
    outside = bare.work.parent / "x"
    outside.write_text("secret")
    for path in ("../x", "/etc/passwd", "a/../../x", "out/x", "chain/x", "up/../../x", "round/x"):
        for asking in (upload(bare, path, b"new"), download(bare, path), bare.ask(WorkerListFiles(path=path))):
            problem = await refusal(asking)
            assert (problem.code, problem.field, bool(problem.remedy)) == ("refused", "path", True), (path, problem)
    assert outside.read_text() == "secret"
    assert list(elsewhere.iterdir()) == []


async def test_links_inside_the_work_tree_are_followed(bare: Any) -> None:
    """Links are followed within a path and at the end of a download; an upload replaces a link at its end."""
    (bare.work / "real").mkdir()
    (bare.work / "real/file").write_text("content")
    (bare.work / "current").symlink_to("real")
    (bare.work / "real/alias").symlink_to("../current/./file")
    assert (await download(bare, "current/alias"))[1] == b"content"
    await upload(bare, "current/alias", b"own")
    assert (bare.work / "real/file").read_text() == "content"
    assert (bare.work / "real/alias").read_text() == "own"
    assert not (bare.work / "real/alias").is_symlink()


async def test_archive_that_leads_out_is_refused_whole(bare: Any) -> None:
    """No entry of it is written, not even earlier ones."""
    for name in ("../evil", "/tmp/evil", "link/evil"):
        bad = archive({"good": b"1", "link": b"", name: b"2"}, links={"link": "../.."})
        problem = await refusal(upload(bare, "folder", bad, unpack=True))
        assert (problem.code, problem.field) == ("refused", "path")
        assert list(bare.work.iterdir()) == []
    problem = await refusal(upload(bare, "folder", b"no archive at all", unpack=True))
    assert (problem.code, problem.field) == ("invalid_field", "data")
    assert list(bare.work.iterdir()) == []


async def test_wrong_bytes_are_refused_and_leave_nothing(bare: Any) -> None:
    """Content with a wrong digest, small or large, and content with a missing chunk are refused and leave nothing."""
    small = await refusal(upload(bare, "a", b"x", sha256=sha256(b"y")))
    assert (small.code, small.field) == ("invalid_field", "sha256")
    content = os.urandom(MEBIBYTE)
    reference = (await bare.put_aside(content)).model_copy(update={"sha256": sha256(b"y")})
    large = await refusal(upload(bare, "a", content, artifact=reference, sha256=sha256(b"y")))
    assert (large.code, large.field) == ("invalid_field", "sha256")
    longer = (await bare.put_aside(content)).model_copy(update={"size": MEBIBYTE + INLINE_BYTES, "chunks": 9})
    missing = await refusal(upload(bare, "a", content, artifact=longer))
    assert (missing.code, missing.field) == ("not_found", "artifact")
    assert list(bare.work.iterdir()) == []


async def test_transfer_over_the_cap_is_refused_with_the_cap(bare: Any) -> None:
    """Both directions, files and folders are refused before any transfer."""
    reference = (await bare.put_aside(b"x")).model_copy(update={"size": 17 * MEBIBYTE})
    problem = await refusal(upload(bare, "a", b"x", data=None, artifact=reference))
    assert (problem.code, str(CAP) in problem.message) == ("too_large", True)
    with (bare.work / "big").open("wb") as file:
        file.truncate(17 * MEBIBYTE)
    for path in ("big", "."):
        problem = await refusal(download(bare, path))
        assert (problem.code, str(CAP) in problem.message) == ("too_large", True)


async def test_impossible_transfer_states_why(bare: Any) -> None:
    """A folder in the place of a file, a missing file, and neither file nor folder are refused with the reason."""
    (bare.work / "folder").mkdir()
    (bare.work / "file").write_text("x")
    os.mkfifo(bare.work / "pipe")
    assert (await refusal(upload(bare, "folder", b"x"))).code == "refused"
    assert (await refusal(upload(bare, ".", b"x"))).code == "refused"
    assert (await refusal(upload(bare, "file/x", b"x"))).code == "refused"
    assert (await refusal(download(bare, "nothing"))).code == "not_found"
    assert (await refusal(download(bare, "pipe"))).code == "refused"
    assert (await refusal(bare.ask(WorkerListFiles(path="nothing")))).code == "not_found"


async def test_listing_has_all_kinds_of_files(bare: Any) -> None:
    """A listing is flat or recursive, sorted, and limited."""
    await upload(bare, "b/ü.txt", b"12345", mode=0o600)
    (bare.work / "a").symlink_to("b")
    (bare.work / "b/sub").mkdir()
    flat = await bare.ask(WorkerListFiles())
    assert [(entry.path, entry.kind) for entry in flat.entries] == [("a", "symlink"), ("b", "folder")]
    deep = await bare.ask(WorkerListFiles(recursive=True))
    assert [entry.path for entry in deep.entries] == ["a", "b", "b/sub", "b/ü.txt"]
    assert (deep.entries[-1].size, deep.entries[-1].mode, deep.entries[-1].kind) == (5, 0o600, "file")
    assert [entry.path for entry in (await bare.ask(WorkerListFiles(path="a"))).entries] == ["a/sub", "a/ü.txt"]
    assert [entry.path for entry in (await bare.ask(WorkerListFiles(path="b/ü.txt"))).entries] == ["b/ü.txt"]
    some = await bare.ask(WorkerListFiles(recursive=True, limit=2))
    assert (len(some.entries), some.truncated) == (2, True)


async def test_listing_of_very_long_names_is_truncated(bare: Any) -> None:
    """The reply with very long names fits its limit and states that it is truncated."""
    deep = Path(*["d" * 200] * 15)
    (bare.work / deep).mkdir(parents=True)
    for number in range(200):
        (bare.work / deep / f"{number}{'ü' * 100}").touch()
    found = await bare.ask(WorkerListFiles(recursive=True))
    assert found.truncated
    assert found.entries


@pytest.mark.own_broker
@pytest.mark.faults
async def test_upload_survives_a_restart_of_the_broker(bare: Any, herd: Any, desk: Any, eventually: Any) -> None:
    """A broker's restart during the fetch of the chunks does not stop an upload, and the file is complete."""
    content = os.urandom(5 * MEBIBYTE)
    reference = await bare.put_aside(content)
    question = WorkerUpload(
        max_bytes=CAP, path="a", artifact=reference, sha256=sha256(content), transfer="trf-1", wait_seconds=0.1
    )
    desk.delay = asyncio.Event()
    assert not (await bare.ask(question)).done
    await eventually(lambda: any(requested.after for requested in desk.fetched), "the middle of the transfer")
    await herd.kill()
    desk.delay.set()
    await herd.restart()
    while not (answer := await bare.ask(question)).done:
        pass
    assert answer.sha256 == sha256(content)
    assert (bare.work / "a").read_bytes() == content


@pytest.mark.own_broker
@pytest.mark.faults
async def test_download_survives_a_restart_of_the_broker(bare: Any, herd: Any, eventually: Any) -> None:
    """After a broker's restart during the storing of the chunks all of them are stored."""
    content = os.urandom(12 * MEBIBYTE)
    (bare.work / "a").write_bytes(content)
    question = WorkerDownload(max_bytes=CAP, path="a", transfer="trf-1", wait_seconds=0.02)
    assert not (await bare.ask(question)).done
    await herd.kill()
    await herd.restart()
    while not (answer := await bare.ask(question)).done:
        pass
    assert await bare.taken(answer.artifact) == content


async def test_upload_is_reported_as_a_change_once_complete(sandbox: Any) -> None:
    """An upload is seen as one change of the work tree, once it is complete and under its own name."""
    sandbox.task("while ! test -e enough; do sleep 0.05; done")
    await sandbox.start()
    await sandbox.event("tool_use")
    await upload(sandbox, "large.bin", os.urandom(MEBIBYTE))
    await upload(sandbox, "folder", archive({"a": b"1", "b/c": b"2"}), unpack=True)
    await upload(sandbox, "enough", b"")
    assert await sandbox.ended() == 0
    paths = {event.data.file_path for event in await sandbox.events("file_edited")}
    assert paths == {"large.bin", "folder/a", "folder/b/c", "enough"}
