"""`SyncHerd` works in programs without asyncio, with the real services."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Context, Herd
from tests.patience import PATIENCE

HEAD = f"""
import pathlib, sys, threading, time
from sandherd.client import Context, HerdError, NotReachedError, SandboxSpec, SyncHerd, task_spec
place = Context(
    nats_url=sys.argv[1], credentials=pathlib.Path(sys.argv[2]), project="default", home=pathlib.Path(sys.argv[3])
)
connect = lambda: SyncHerd.connect(place, patience={PATIENCE})
"""
WORK = """
with connect() as herd:
    task = herd.submit(task_spec("x", ["sh", "-c", "echo out"], keep_work=True))
    with herd.follow(task=task) as following:
        types = [event.type for event in following]
    assert types[-1] == "task.completed", types
    assert following.is_complete
    view = herd.wait(task)
    assert view.state == "completed", view
    assert "".join(chunk.text for chunk in herd.output(view.sandbox, follow=True)).strip().endswith("out")
    while herd.audit().unstored: time.sleep(0.05)
    stored = herd.events(task=task)
    assert next(stored).envelope["type"] == "task.submitted"
    stored.close()
    box = herd.create(SandboxSpec(ttl_seconds=600))
    done = herd.exec(box.sandbox, ["sh", "-c", "echo one; echo two >&2; exit 3"]).wait()
    assert (done.exit_code, {(one.stream, one.data) for one in done.output}) == (
        3, {("stdout", b"one\\n"), ("stderr", b"two\\n")}
    )
    found = []
    threads = [threading.Thread(target=lambda: found.append(herd.task(task).task)) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert found == [task] * 8, found
    try:
        herd.task("task-none")
    except HerdError as error:
        assert error.problem.code == "not_found"
    else:
        raise AssertionError
    herd.terminate(box.sandbox)
    left = herd.events()
    next(left)
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
try:
    herd.task(task)
except HerdError as error:
    assert "closed" in str(error)
print("done")
"""
INTERRUPTED = """
try:
    with connect() as herd:
        task = herd.submit(task_spec("x", ["sleep", "600"]))
        print(task, flush=True)
        if sys.argv[4] == "wait":
            herd.wait(task)
        else:
            with herd.follow(task=task) as following:
                for event in following:
                    pass
except KeyboardInterrupt:
    print("interrupted", threading.enumerate() == [threading.main_thread()])
"""


@pytest.fixture
def program(line: Context, tmp_path: Path) -> Any:
    """A function that starts a program with the addresses of the real services as arguments."""

    async def start(text: str, *more: str) -> asyncio.subprocess.Process:
        path = tmp_path / "program.py"
        path.write_text(HEAD + text)
        place = [line.nats_url, str(line.credentials), str(line.home)]
        return await asyncio.create_subprocess_exec(
            *[sys.executable, "-W", "error", str(path), *place, *more],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


async def test_program_without_asyncio_does_all_work(program: Any) -> None:
    """Tasks, events as generators, output, commands and threads work with the same errors; no thread is left."""
    process = await program(WORK)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"done\n", b"")
    await check_unreachable_broker_is_the_error_of_the_asynchronous_client(program)


async def test_interrupted_program_closes_the_connection(program: Any, real: Herd) -> None:
    """Ctrl-C ends the waiting method, and asyncio prints nothing; the task continues."""
    for what in ("wait", "follow"):
        await check_interrupt(program, real, what)


async def check_interrupt(program: Any, real: Herd, what: str) -> None:
    """Check Ctrl-C during one method."""
    process = await program(INTERRUPTED, what)
    task = (await process.stdout.readline()).decode().strip()
    async with real.follow(task=task) as events:
        async for event in events:
            if event.type == "agent.started":
                break
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"interrupted True\n", b"")
    assert not (await real.task(task)).ended_at
    await real.cancel(task)
    await real.wait(task)


async def check_unreachable_broker_is_the_error_of_the_asynchronous_client(program: Any) -> None:
    """Check that it is `NotReachedError`, and that the thread has ended."""
    text = """
place = Context(nats_url="nats://127.0.0.1:9", credentials=None, project="default", home=pathlib.Path(sys.argv[3]))
try:
    with SyncHerd.connect(place, patience=0):
        pass
except NotReachedError:
    print(threading.enumerate() == [threading.main_thread()])
"""
    process = await program(text)
    assert await process.communicate() == (b"True\n", b"")
