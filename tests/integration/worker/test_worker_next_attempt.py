"""The work tree and the transcript of one attempt, and how the next attempt gets them."""

import asyncio
import io
import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandherd.archives.writer import add_file
from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import ARTIFACT

FAILS = (
    "mkdir -p src build; echo code > src/a.py; echo object > build/a.o; echo build/ > .gitignore; echo trying; exit 7"
)


def kinds(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("agent.") for event in events if event.type != "agent.heartbeat"]


def names(archive: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {info.name for info in tar if not info.isdir()}


async def test_failed_attempt_stores_work_and_transcript(sandbox: Any) -> None:
    """Both are stored before the end is published; ignored files are left out, git's own folder is included."""
    sandbox.task(FAILS + "", files={".git/HEAD": "ref: refs/heads/main\n"})
    assert await sandbox.run() == 0
    assert kinds(await sandbox.events())[-4:] == ["work_saved", "transcript_saved", "failed", "shutdown"]
    saved = (await sandbox.event("work_saved")).data
    assert names(await sandbox.taken(saved.artifact)) == {".git/HEAD", ".gitignore", "src/a.py"}
    assert (saved.files, saved.left_out, saved.artifact.media_type) == (3, None, "application/gzip")
    transcript = (await sandbox.event("transcript_saved")).data
    assert await sandbox.taken(transcript.artifact) == b"trying\n"


async def test_oversized_work_tree_is_left_out_with_the_reason(sandbox: Any) -> None:
    """The attempt ends nevertheless; if no work tree is requested, nothing is published about it."""
    sandbox.python("import os; open('big', 'wb').write(os.urandom(2**20)); exit(1)")
    assert await sandbox.run(SANDHERD_MAX_WORK_BYTES="100000") == 0
    saved = (await sandbox.event("work_saved")).data
    assert (saved.artifact, "100000" in (saved.left_out or "")) == (None, True)
    assert kinds(await sandbox.events())[-2:] == ["failed", "shutdown"]


async def test_unwanted_work_is_not_stored(sandbox: Any) -> None:
    """Work that is not requested is not stored, and no event states that."""
    sandbox.task(FAILS)
    assert await sandbox.run(SANDHERD_MAX_WORK_BYTES="0") == 0
    assert await sandbox.events("work_saved") == []


async def test_work_tree_never_fills_the_spool(sandbox: Any) -> None:
    """The work tree may take half of the spool's remaining space."""
    sandbox.python("import os; open('big', 'wb').write(os.urandom(6 * 2**20)); exit(1)")
    assert await sandbox.run(SANDHERD_SPOOL_MB="8") == 0
    assert (await sandbox.event("work_saved")).data.left_out
    assert (await sandbox.event("failed")).data.error_type == "exit_status"


async def test_completed_attempt_stores_only_its_transcript(sandbox: Any) -> None:
    """The work tree of a completed attempt is not stored, as no further attempt will use it."""
    sandbox.task("echo done; echo x > a")
    assert await sandbox.run() == 0
    assert kinds(await sandbox.events())[-3:] == ["transcript_saved", "completed", "shutdown"]


async def test_completed_attempt_stores_its_wanted_work(sandbox: Any) -> None:
    """Requested work is stored for a later task before the end is published."""
    sandbox.task("echo done; echo x > a", keep_work=True)
    assert await sandbox.run() == 0
    assert kinds(await sandbox.events())[-4:] == ["work_saved", "transcript_saved", "completed", "shutdown"]
    assert names(await sandbox.taken((await sandbox.event("work_saved")).data.artifact)) == {"a"}


async def test_changes_while_a_sandbox_lingers_are_stored(sandbox: Any) -> None:
    """The final state of a requested work tree is stored again."""
    sandbox.task("echo x > a", keep_work=True, linger_seconds=600)
    await sandbox.start()
    await sandbox.event("waiting")
    (sandbox.work / "b").write_text("later")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    saved = [event.data.artifact for event in await sandbox.events("work_saved")]
    assert [names(await sandbox.taken(one)) for one in saved] == [{"a"}, {"a", "b"}]


async def test_end_of_a_very_long_transcript_is_stored(sandbox: Any) -> None:
    """The last four MiB of a very long transcript are stored."""
    sandbox.python("for n in range(500_000): print('line', n)")
    assert await sandbox.run() == 0
    reference = (await sandbox.event("transcript_saved")).data.artifact
    content = await sandbox.taken(reference)
    assert reference.size == len(content) == 4 * 1024 * 1024
    assert content.endswith(b"line 499998\nline 499999\n")


async def test_stopped_attempt_stores_its_work(sandbox: Any) -> None:
    """The work of a stopped attempt is stored within the grace."""
    sandbox.task("echo half > a; sleep 600")
    await sandbox.start()
    await sandbox.event("file_edited")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert names(await sandbox.taken((await sandbox.event("work_saved")).data.artifact)) == {"a"}


async def test_recovery_stores_work_and_transcript_of_a_lost_attempt(sandbox: Any, eventually: Any) -> None:
    """Both are stored before the loss of the worker is published."""
    sandbox.task("echo half > a; echo words; sleep 600")
    await sandbox.start()
    await sandbox.event("file_edited")
    await eventually(lambda: _has_output(sandbox), "its words")
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    assert await sandbox.run("--recover", SANDHERD_LOST_SIGNAL="9") == 0
    assert kinds(await sandbox.events())[-4:] == ["work_saved", "transcript_saved", "failed", "shutdown"]
    assert names(await sandbox.taken((await sandbox.event("work_saved")).data.artifact)) == {"a"}
    assert await sandbox.taken((await sandbox.event("transcript_saved")).data.artifact) == b"words\n"


async def _has_output(sandbox: Any) -> bool:
    return bool(await sandbox.output())


async def offered(sandbox: Any, use: str, tmp_path: Path, *, fails: str = FAILS, **fields: Any) -> dict[str, str]:
    """Offer what a failed attempt in another sandbox has stored; returns the variables for it."""
    sandbox.task(fails)
    assert await sandbox.run() == 0
    work = (await sandbox.event("work_saved")).data.artifact
    transcript = (await sandbox.event("transcript_saved")).data.artifact
    previous = Previous.model_validate(
        {
            "attempt": 1,
            "sandbox": sandbox.name,
            "error": "it ended with exit status 7",
            "error_type": "exit_status",
            "work": work,
            "transcript": transcript,
            "use": use,
            **fields,
        }
    )
    _become_new_sandbox(sandbox, tmp_path / "second")
    (sandbox.state / "previous.json").write_text(previous.model_dump_json())
    (tmp_path / "previous").mkdir()
    return {
        "SANDHERD_ATTEMPT": "2",
        "SANDHERD_PREVIOUS_FILE": str(sandbox.state / "previous.json"),
        "SANDHERD_PREVIOUS_DIR": str(tmp_path / "previous"),
    }


def _become_new_sandbox(sandbox: Any, home: Path) -> None:
    """A new sandbox beside the first."""
    sandbox.name = new_name("sbx")
    sandbox.work, sandbox.state = home / "work", home / "state"
    sandbox.work.mkdir(parents=True)
    sandbox.state.mkdir()


async def test_previous_work_is_offered_to_the_next_attempt(sandbox: Any, tmp_path: Path) -> None:
    """The previous work is beside the empty work tree, with the reason why the first attempt failed."""
    variables = await offered(sandbox, "offer", tmp_path)
    sandbox.task("cd $SANDHERD_PREVIOUS_DIR; cat work/src/a.py transcript; ls -A $OLDPWD")
    assert await sandbox.run(**variables) == 0
    assert await sandbox.output() == "code\ntrying\n"
    attempt = json.loads((tmp_path / "previous/attempt.json").read_text())
    assert (attempt["attempt"], attempt["error_type"]) == (1, "exit_status")
    assert not (tmp_path / "previous" / "work" / "build").exists()
    assert await sandbox.events("error", "file_edited") == []


async def test_previous_work_is_restored_to_the_next_attempt(sandbox: Any, tmp_path: Path) -> None:
    """With `restore` the previous work is the work tree before the agent starts, and is reported as no change."""
    variables = await offered(sandbox, "restore", tmp_path)
    sandbox.task("cat src/a.py; echo more >> src/a.py", files={"src/a.py": "as it was given\n"})
    assert await sandbox.run(**variables) == 0
    assert await sandbox.output() == "code\n"
    edited = [event.data for event in await sandbox.events("file_edited")]
    assert [(one.file_path, one.change_type) for one in edited] == [("src/a.py", "modified")]
    assert (await sandbox.event("completed")).data.exit_code == 0


def began_with(**files: str) -> bytes:
    """The archive of the files with which a task begins; two underscores stand for a slash."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in files.items():
            add_file(tar, name.replace("__", "/"), text.encode(), 0o644)
    return out.getvalue()


async def test_restored_tree_has_the_ignored_files_that_the_task_begins_with(sandbox: Any, tmp_path: Path) -> None:
    """Ignored files, which are not stored, come from the task; what the earlier attempt deleted or changed stays so."""
    variables = await offered(sandbox, "restore", tmp_path)
    work = await sandbox.put_aside(began_with(build__given="data", gone="x", src__a="x"), "task-1")
    sandbox.task("find . -type f | sort; cat src/a.py build/given", work=work.model_dump())
    assert await sandbox.run(**variables) == 0
    assert await sandbox.output() == "./.gitignore\n./build/given\n./src/a.py\ncode\ndata"


async def test_attempt_begins_with_the_files_of_its_task_if_nothing_is_restored(sandbox: Any, tmp_path: Path) -> None:
    """The failure to restore is an error event, and the attempt begins with its task's files."""
    subject = ARTIFACT.fill(project="default", sandbox=sandbox.name, artifact="art-gone")
    gone = {"artifact": "art-gone", "subject": subject, "size": 10, "sha256": "0" * 64, "chunks": 1}
    variables = await offered(sandbox, "restore", tmp_path, work=gone)
    work = await sandbox.put_aside(began_with(build__given="data", src__a="x"), "task-1")
    sandbox.task("find . -type f | sort", work=work.model_dump(), files={"src/a": "text"})
    assert await sandbox.run(**variables) == 0
    assert await sandbox.output() == "./build/given\n./src/a\n"
    assert "work tree could not be taken over" in (await sandbox.event("error")).data.error


LINKS = (
    "mkdir a m z; echo 1 > a/one; ln -s /usr/bin/python3 m/python; ln -s ../../.. m/up; ln -s python m/python3;"
    "echo 2 > z/two; echo trying; exit 7"
)


@pytest.mark.parametrize(("use", "place"), [("offer", "$SANDHERD_PREVIOUS_DIR/work"), ("restore", ".")])
async def test_links_that_lead_out_lose_no_other_file(sandbox: Any, tmp_path: Path, use: str, place: str) -> None:
    """A link that leads out, as in every virtual environment, is restored as a link, with all other files."""
    variables = await offered(sandbox, use, tmp_path, fails=LINKS)
    sandbox.task(f"cd {place}; cat a/one z/two; readlink m/python m/python3 m/up; m/python3 -c 'print(3)'")
    assert await sandbox.run(**variables) == 0
    assert await sandbox.output() == "1\n2\n/usr/bin/python3\npython\n../../..\n3\n"
    assert await sandbox.events("error") == []


@pytest.mark.parametrize("use", ["offer", "restore"])
async def test_invalid_archive_is_not_unpacked_partly(sandbox: Any, tmp_path: Path, use: str) -> None:
    """An archive that is invalid in its middle or conflicts leaves only an error event."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("a/one", "../out", "z/two"):
            tar.addfile(tarfile.TarInfo(name))
    variables = await offered(sandbox, use, tmp_path)
    work = (await sandbox.put_aside(out.getvalue())).model_dump()
    previous = json.loads((sandbox.state / "previous.json").read_text())
    previous |= {"work": work, "transcript": None, "sandbox": sandbox.name}
    (sandbox.state / "previous.json").write_text(json.dumps(previous))
    sandbox.task("ls -A . $SANDHERD_PREVIOUS_DIR", files={"given": "here"})
    assert await sandbox.run(**variables) == 0
    assert "../out" in (await sandbox.event("error")).data.error
    assert (await sandbox.output()).split() == [".:", "given", f"{tmp_path}/previous:", "attempt.json"]


async def test_restore_replaces_no_folder_by_a_file(sandbox: Any, tmp_path: Path) -> None:
    """A file never replaces a folder: nothing is restored then, and an error event states it."""
    variables = await offered(sandbox, "restore", tmp_path, fails="mkdir a; echo 1 > a/one; echo 2 > z; echo; exit 7")
    sandbox.task("find . -type f", files={"z/given": "here"})
    assert await sandbox.run(**variables) == 0
    assert "work/z is a folder" in (await sandbox.event("error")).data.error
    assert await sandbox.output() == "./z/given\n"


async def test_attempt_starts_without_unavailable_parts(sandbox: Any, tmp_path: Path) -> None:
    """Each missing part is an error event, and the agent starts."""
    subject = ARTIFACT.fill(project="default", sandbox=sandbox.name, artifact="art-gone")
    gone = {"artifact": "art-gone", "subject": subject, "size": 10, "sha256": "0" * 64, "chunks": 1}
    variables = await offered(sandbox, "offer", tmp_path, work=gone)
    sandbox.task("cat $SANDHERD_PREVIOUS_DIR/transcript; ls $SANDHERD_PREVIOUS_DIR")
    assert await sandbox.run(**variables) == 0
    assert await sandbox.output() == "trying\nattempt.json\ntranscript\n"
    error = (await sandbox.event("error")).data
    assert (error.phase, "work tree" in error.error, "missing" in error.error) == ("previous", True, True)


async def test_invalid_offer_is_reported_and_ignored(sandbox: Any, tmp_path: Path) -> None:
    """With an invalid offer the attempt starts without the earlier work."""
    (sandbox.state / "previous.json").write_text('{"attempt": "many"}')
    sandbox.task("echo here")
    variables = {"SANDHERD_PREVIOUS_FILE": str(sandbox.state / "previous.json"), "SANDHERD_PREVIOUS_DIR": str(tmp_path)}
    assert await sandbox.run(**variables) == 0
    assert (await sandbox.event("error")).data.phase == "previous"
    assert await sandbox.output() == "here\n"


async def test_worker_is_stopped_during_a_fetch(sandbox: Any, desk: Any, tmp_path: Path, eventually: Any) -> None:
    """The fetch of the previous work does not delay the worker's stop."""
    variables = await offered(sandbox, "offer", tmp_path)
    large = await sandbox.put_aside(os.urandom(512 * 1024))
    previous = json.loads((sandbox.state / "previous.json").read_text())
    previous |= {"work": large.model_dump(), "sandbox": sandbox.name}
    (sandbox.state / "previous.json").write_text(json.dumps(previous))
    desk.delay = asyncio.Event()
    desk.fetched.clear()
    sandbox.task("touch begun")
    await sandbox.start(**variables)
    await eventually(lambda: any(requested.after for requested in desk.fetched), "the middle of the fetch")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert (await sandbox.event("failed")).data.error_type == "stopped"
    assert not (sandbox.work / "begun").exists()
    desk.delay.set()
