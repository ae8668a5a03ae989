"""Tasks in containers of a real engine through the real stack, from submission to removal."""

from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.failures import ErrorType
from sandherd.contracts.repositories import MOUNTED
from sandherd.contracts.requests import BranchView
from sandherd.contracts.specs import RetryPolicy, SandboxLimits
from tests.e2e.docker.conftest import FORWARDED, HOLD
from tests.integration.repositories.conftest import commit, git

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


async def test_task_runs_from_submission_to_its_diff(dockered: Any) -> None:
    """The task has its files and no privileges; its change and its output are stored."""
    script = "cat given; echo three >> given; id -u; touch /etc/mine 2>/dev/null || echo as it should be"
    task = await dockered.submit(script, files={"given": "one\ntwo\n"})
    view = await dockered.ended(task)
    assert (view.state, view.error) == ("completed", None)
    await dockered.whole(view.sandbox)
    final_output = (await dockered.event(task, "agent.completed"))["data"]["final_output"]
    assert final_output == "one\ntwo\n1000\nas it should be\n"
    changed = (await dockered.event(task, "agent.file_edited"))["data"]
    assert (changed["file_path"], changed["lines_added"], changed["lines_removed"]) == ("given", 1, 0)
    assert "+three" in changed["diff_preview"]


async def test_forwarded_variable_is_present_and_secret(dockered: Any) -> None:
    """The spawner's own variable is passed by name; no event has its value, though the agent prints it."""
    task = await dockered.submit('test "$FORWARDED" = forwarded-value-4711 && echo "<$FORWARDED>" && env')
    view = await dockered.ended(task)
    assert view.state == "completed", view.error
    await dockered.whole(view.sandbox)
    stored = str(await dockered.events(task))
    assert FORWARDED not in stored
    assert "<" in stored


async def test_mounts_of_a_profile_are_present(dockered: Any) -> None:
    """A shared volume belongs to root, as the engine creates it; a read-only folder refuses writes."""
    await dockered.docker.volumes.create({"Name": "sandherd-test-data"})
    try:
        script = "cat /given/note; touch /given/mine 2>/dev/null && exit 3; mount | grep ' /data ' &&"
        script += " test $(stat -c %u /data) = 0 && ! touch /data/mine 2>/dev/null"
        task = await dockered.submit(script, profile="mounted")
        view = await dockered.ended(task)
        assert view.state == "completed", view.error
        await dockered.whole(view.sandbox)
        assert "from the host" in str(await dockered.events(task))
    finally:
        await (await dockered.docker.volumes.get("sandherd-test-data")).delete(force=True)


async def test_oom_killed_agent_is_distinguished_from_a_failed_one(dockered: Any) -> None:
    """The error is `out_of_memory`, and the worker survives to report it."""
    eats = "exec python3 -c \"b = b'x' * (1 << 30)\""
    task = await dockered.submit(eats, limits=SandboxLimits(memory_mb=128))
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.OUT_OF_MEMORY)
    await dockered.whole(view.sandbox)


async def test_signal_that_ended_the_agent_is_reported(dockered: Any) -> None:
    """The event has the number of the signal."""
    task = await dockered.submit("kill -SEGV $$")
    view = await dockered.ended(task)
    assert (view.state, view.error_type) == ("failed", ErrorType.SIGNAL)
    assert (await dockered.event(task, "agent.failed"))["data"]["signal"] == 11
    await dockered.whole(view.sandbox)


async def test_cancelled_task_leaves_no_container(dockered: Any) -> None:
    """The container and its volume are removed; earlier events are stored."""
    task = await dockered.submit(f"echo before; {HOLD}")
    sandbox = await dockered.began(task)
    await dockered.herd.cancel(task, reason="enough")
    view = await dockered.ended(task)
    assert view.state == "cancelled"
    await dockered.whole(sandbox)
    assert "before" in str(await dockered.events(task))


async def test_sandbox_is_paused_and_resumed(dockered: Any) -> None:
    """Nothing runs in a container that the engine pauses; afterwards it continues."""
    task = await dockered.submit(HOLD)
    sandbox = await dockered.began(task)
    await dockered.herd.pause(sandbox)
    await dockered.event(task, "sandbox.paused")
    shown = await dockered.docker.containers.container(f"sandherd-{sandbox}").show()
    assert shown["State"]["Paused"] is True
    await dockered.herd.resume(sandbox)
    await dockered.event(task, "sandbox.resumed")
    await dockered.let_go(sandbox)
    view = await dockered.ended(task)
    assert view.state == "completed"
    await dockered.whole(sandbox)


FIRST = """
mkdir -p 'a b/ü'; printf 'one\\n' > 'a b/ü/file'; printf '#!/bin/sh\\necho ran\\n' > run.sh; chmod 755 run.sh
ln -s run.sh link; ln run.sh second; ln -s /etc/passwd out; echo two >> given; exit 3
"""
SECOND = """
python3 -c 'import tarfile; print(hasattr(tarfile, "data_filter"))'
cat 'a b/ü/file'; ./run.sh; ./link; test run.sh -ef second && echo same; readlink out; cat given
stat -c %a run.sh 'a b/ü/file'
"""


async def test_next_attempt_restores_the_work_of_the_first(dockered: Any) -> None:
    """Links and modes are restored too, also by Debian's Python, which has no filter for archives."""
    script = f'if [ "$SANDHERD_ATTEMPT" = 1 ]; then {FIRST} fi; {SECOND}'
    retry = RetryPolicy(max_attempts=2, first_delay_seconds=0, also=frozenset({ErrorType.EXIT_STATUS}))
    task = await dockered.submit(script, files={"given": "one\n"}, on_retry="restore", retry=retry)
    view = await dockered.ended(task)
    assert (view.state, view.attempt) == ("completed", 2), view.error
    await dockered.whole(view.sandbox)
    assert [one["data"] for one in await dockered.events(task, "agent.error")] == []
    final_output = (await dockered.event(task, "agent.completed"))["data"]["final_output"].splitlines()
    assert final_output == ["False", "one", "ran", "ran", "same", "/etc/passwd", "one", "two", "755", "644"]


async def test_repository_is_mounted_and_its_clone_needs_it_no_more(dockered: Any, tmp_path: Path) -> None:
    """The engine sees the spawner's home, so that no bundle is made; the branch has the agent's commit."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path, {"shop.py": "total = 1\n"})
    script = (
        f"test -f {MOUNTED}/HEAD && ! touch {MOUNTED}/mine && ! test -e .git/objects/info/alternates &&"
        " echo 'total = 2' > shop.py && git commit --quiet --all --message More && git fsck --strict"
    )
    task = await dockered.submit(script, repository=tmp_path)
    view = await dockered.ended(task)
    assert view.state == "completed", view.error

    async def saved() -> BranchView | None:
        found = (await dockered.herd.branches(task=task)).branches
        return found[0] if found and found[0].commits == 1 else None

    async def removed() -> bool | None:
        return not await dockered.left() or None

    assert (await dockered.eventually(saved)).files_changed == 1
    await dockered.eventually(removed)
