"""Files from results of other tasks, which a worker places into the work tree: those results are not trusted."""

import io
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest

from sandherd.contracts.subjects import ARTIFACT

OTHER = "sbx-other"


def archive(files: Mapping[str, str], links: Mapping[str, str] | None = None, **more: bytes) -> bytes:
    """Create a tar archive of links and files, in this order; `more` are other types of entries."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, kind in more.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "../outside"
            tar.addfile(entry)
    return out.getvalue()


async def given(sandbox: Any, content: bytes, *paths: str, task: str = "task-build") -> dict[str, Any]:
    """One input with this archive, as the spawner describes it."""
    work = await sandbox.put_aside(content, OTHER)
    return {"task": task, "paths": list(paths), "sandbox": OTHER, "work": work.model_dump()}


async def test_files_of_several_tasks_are_placed(sandbox: Any) -> None:
    """The named files are placed in their folders; later tasks overwrite earlier ones, the task's own files both."""
    one = await given(sandbox, archive({"a/x": "1", "a/y": "1", "b": "1", "c": "1"}), "a", "b")
    two = await given(sandbox, archive({"a/x": "2", "a/b": "2", "d.txt": "2"}), "a/x", "*.txt", task="task-two")
    sandbox.task(
        "for f in $(find . -type f | sort); do echo $f $(cat $f); done",
        depends_on=["task-build", "task-two"],
        inputs=[one, two],
        files={"b": "mine"},
    )
    assert await sandbox.run() == 0
    assert await sandbox.output() == "./a/x 2\n./a/y 1\n./b mine\n./d.txt 2\n"


@pytest.mark.parametrize(
    ("content", "expected_text"),
    [
        (archive({"a": "1", "../outside": "2"}), "leads out of the folder"),
        (archive({"a": "1", "/tmp/outside": "2"}), "leads out of the folder"),
        (archive({"a": "1", "link/x": "2"}, {"link": "/tmp"}), "leads out of the folder"),
        (archive({"a": "1"}, pipe=tarfile.FIFOTYPE), "leads out of the folder"),
        (archive({"a": "1"}, hard=tarfile.LNKTYPE), "leads out of the folder"),
        (archive({"a": "1"})[:-20], "not a complete tar archive"),
        (b"no archive", "not a complete tar archive"),
    ],
    ids=range(7),
)
async def test_hostile_archive_is_refused(sandbox: Any, content: bytes, expected_text: str) -> None:
    """A hostile archive is refused as a whole and permanently, even for unwanted entries; the agent does not start."""
    sandbox.task("echo started", depends_on=["task-build"], inputs=[await given(sandbox, content, "a")])
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, expected_text in failed.error, "task-build" in failed.error) == ("start", True, True)
    assert await sandbox.output() == ""
    assert not (sandbox.work / "a").exists()


async def test_links_that_lead_out_are_left_out(sandbox: Any) -> None:
    """Links that lead out are left out; others are created after all files."""
    links = {"d/out": "/etc", "d/up": "../..", "d/in": "file"}
    one = await given(sandbox, archive({"d/file": "text"}, links), "d")
    sandbox.task("ls d; cat d/in", depends_on=["task-build"], inputs=[one])
    assert await sandbox.run() == 0
    assert await sandbox.output() == "file\nin\ntext"


async def test_result_that_is_no_longer_stored_is_a_permanent_failure(sandbox: Any) -> None:
    """The error for a result that is no longer stored names the remedy."""
    subject = ARTIFACT.fill(project="default", sandbox=OTHER, artifact="art-gone")
    gone = {"artifact": "art-gone", "subject": subject, "size": 10, "sha256": "0" * 64, "chunks": 1}
    one = {"task": "task-build", "paths": ["a"], "sandbox": OTHER, "work": gone}
    sandbox.task("echo started", depends_on=["task-build"], inputs=[one])
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert failed.error_type == "start"
    assert "submit both tasks again" in failed.error


async def test_folder_in_the_way_is_an_error_that_names_it(sandbox: Any) -> None:
    """A file never replaces a folder of the work tree with which the task begins; the error names the folder."""
    one = await given(sandbox, archive({"a": "1"}), "a")
    two = await given(sandbox, archive({"a/x": "1"}), "a", task="task-two")
    sandbox.task("echo started", depends_on=["task-build", "task-two"], inputs=[one, two])
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, "task-two" in failed.error, "/a is a folder" in failed.error) == ("start", True, True)
