"""File events of a whole worker: every kind of change by a shell, with its diff."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

from sandherd_worker.worker_exit import ExitCode

BEFORE = {"kept": "one\ntwo\nthree\n", "moved": "to be moved\n" * 20, "gone": "a\nb\n", "run.sh": "echo\n"}
SCRIPT = r"""
sed -i 's/two/TWO/' kept
mkdir sub && mv moved sub/elsewhere
rm gone
chmod +x run.sh
printf 'new\nlines\n' >'with blank'
printf '\211PNG\0\0' >image
printf x >"$(printf 'bad\377name')"
seq 20000 >large
head -c 30000000 /dev/zero | tr '\0' 'z' >huge
ln -s ../../../etc/passwd link
echo secret >passed.over
"""


async def changes(sandbox: Any) -> dict[str, Any]:
    """The only event of each path."""
    events = [event.data for event in await sandbox.events("file_edited")]
    assert len({event.file_path for event in events}) == len(events)
    return {event.file_path: event for event in events}


async def changed_unseen(sandbox: Any, eventually: Any, script: str, files: dict[str, str]) -> None:
    """Run a script to its end while its worker is stopped: a scan of a half-done state would publish twice."""
    sandbox.task(f"until test -e ../go; do sleep 0.02; done\n{script}\ntouch ../done", files=files)
    await sandbox.start()
    await sandbox.event("tool_use")
    sandbox.signal(signal.SIGSTOP)
    await eventually(lambda: psutil.Process(sandbox.process.pid).status() == psutil.STATUS_STOPPED, "it stands still")
    home = sandbox.work.parent
    (home / "go").touch()
    await eventually((home / "done").exists, "the script has come to its end")
    sandbox.signal(signal.SIGCONT)
    assert await sandbox.ended() == ExitCode.DRAINED


async def test_each_kind_of_change_is_reported_once(sandbox: Any, eventually: Any) -> None:
    """Each change has its path, kind and numbers of lines; ignored files and a changed mode are no changes."""
    await changed_unseen(sandbox, eventually, SCRIPT, {**BEFORE, ".gitignore": "*.over\n"})
    changed = await changes(sandbox)
    assert {
        path: (one.change_type, one.binary, one.lines_added, one.lines_removed) for path, one in changed.items()
    } == {
        "kept": ("modified", False, 1, 1),
        "sub/elsewhere": ("renamed", False, 0, 0),
        "gone": ("deleted", False, 0, 2),
        "with blank": ("created", False, 2, 0),
        "image": ("created", True, 0, 0),
        "bad\ufffdname": ("created", False, 1, 0),
        "large": ("created", False, 20_000, 0),
        "huge": ("created", False, 0, 0),
        "link": ("created", False, 1, 0),
    }
    assert changed["sub/elsewhere"].previous_path == "moved"
    assert "30000000 bytes" in changed["huge"].diff_preview
    assert "root:" not in (changed["link"].full_diff or "")
    completed = await sandbox.event("completed")
    assert completed.data.files_changed == len(changed)


async def test_diffs_of_a_run_restore_its_work(sandbox: Any, tmp_path: Path, eventually: Any) -> None:
    """When git applies the diffs of events and artifacts to the earlier files, the result is the present files."""
    script = SCRIPT.replace("\\377", "")  # except files whose name can't be published
    await changed_unseen(sandbox, eventually, script, BEFORE)
    again = tmp_path / "again"
    again.mkdir()
    for name, text in BEFORE.items():
        (again / name).write_text(text)
    by_reference = 0
    for path, one in (await changes(sandbox)).items():
        if one.change_type == "renamed":
            (again / path).parent.mkdir()
            (again / one.previous_path).rename(again / path)
        elif one.binary or path in {"huge", "link"}:
            shutil.copy2(sandbox.work / path, again / path, follow_symlinks=False)
        elif one.full_diff_ref is None:
            apply(again, one.full_diff.encode())
        else:
            apply(again, await sandbox.taken(one.full_diff_ref))
            by_reference += 1
    assert by_reference == 1
    check_same(sandbox.work, again)


def check_same(one: Path, other: Path) -> None:
    """Check that two trees are the same."""
    assert subprocess.run(["diff", "-r", one, other], capture_output=True, text=True, check=False).stdout == ""


def apply(tree: Path, diff: bytes) -> None:
    """Apply a diff exactly."""
    subprocess.run(["git", "apply", "--unsafe-paths", "-"], input=diff, cwd=tree, check=True, capture_output=True)
