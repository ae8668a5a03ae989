"""The requirements of every provider, tested in the same way."""

import asyncio
import time
from typing import Any

import pytest

from spawner.runtimes.boxes.box_files import HERD, PROJECT, ROOT, STATE
from spawner.runtimes.boxes.provider import Box, BoxState, Command, File, ProviderError, ProviderFault
from tests.integration.runtimes.conftest import PROVIDERS
from tests.late_commands import ran_out_of_time
from tests.patience import PATIENCE

WORK = f"{ROOT}/work"


async def test_sandbox_created_twice_is_one(boxes: Any) -> None:
    """Concurrent requests create one sandbox, whose program is started once."""
    spec = boxes.spec()
    made = await asyncio.gather(*(boxes.provider.create(spec) for _ in range(3)))
    assert {box.id for box in made} == {made[0].id}
    assert [box.name for box in await boxes.provider.find({HERD: boxes.herd})] == [spec.name]
    assert (made[-1].alive, made[-1].runs) == (True, 1)


async def test_interrupted_creation_is_completed(boxes: Any, open_provider: Any) -> None:
    """If the reply is lost with its requester, the next request returns the same sandbox."""
    spec = boxes.spec()
    requested = asyncio.create_task(boxes.provider.create(spec))
    await asyncio.sleep(0)
    requested.cancel()
    await asyncio.gather(requested, return_exceptions=True)
    another = await open_provider()
    try:
        box = await another.create(spec)
        assert box.alive
        assert len(await another.find({HERD: boxes.herd})) == 1
    finally:
        await another.close()


async def test_sandboxes_are_found_by_label_after_a_restart(boxes: Any, open_provider: Any) -> None:
    """Another provider object finds them with their labels, and none of another herd."""
    first, second = await boxes.make(), await boxes.make()
    await boxes.make(labels={HERD: "another", PROJECT: "p1"})
    another = await open_provider()
    try:
        found = await another.find({HERD: boxes.herd})
    finally:
        await another.close()
    assert {box.name for box in found} == {first.name, second.name}
    assert {box.labels[PROJECT] for box in found} == {"p1"}


async def test_program_has_its_files_and_variables(boxes: Any) -> None:
    """Its user alone can read the files, which exist before it starts; its working directory is its own folder."""
    box = await boxes.make(f"stat -c %a {STATE}/task.json > {WORK}/mode; env > {WORK}/env; pwd > {WORK}/pwd; {_WAIT}")
    result = await boxes.sh(box, f"until [ -s {WORK}/pwd ]; do sleep 0.05; done; cat {WORK}/mode {WORK}/pwd; id -u")
    mode, folder, user = result.out.decode().split()
    assert (mode, folder) == ("600", WORK)
    assert await boxes.provider.read(box.name, f"{STATE}/task.json", 1000) == b'{"text": "\xc3\xbc"}'
    assert user != "0"
    assert b"GIVEN=a value" in await boxes.provider.read(box.name, f"{WORK}/env", 100_000)


_WAIT = 'trap "exit 0" TERM; while :; do sleep 0.1; done'


async def test_commands_and_files_of_a_sandbox(boxes: Any) -> None:
    """Commands have an exit status, a time limit and limited output; files are written, read, and refused."""
    box = await boxes.make()
    await check_exit_status_of_a_command_is_reported(boxes, box)
    await check_command_over_its_time_is_ended(boxes, box)
    await check_output_is_limited_to_its_bound(boxes, box)
    await check_file_is_written_and_read_unchanged(boxes, box)
    await check_unreadable_files_are_refused(boxes, box)


async def check_exit_status_of_a_command_is_reported(boxes: Any, box: Box) -> None:
    """Check that every exit status is reported, with both outputs."""
    for code in (0, 1, 124, 137, 255):
        ran = await boxes.sh(box, f"echo out; echo err >&2; exit {code}")
        assert (ran.code, ran.timed_out, ran.cut) == (code, False, False)
        assert b"out" in ran.out
        assert b"err" in ran.out + ran.err


async def check_command_over_its_time_is_ended(boxes: Any, box: Box) -> None:
    """Check that the output until then is returned, and that no process of the command remains."""
    script = "echo before; exec sleep 4711"
    ran = await ran_out_of_time(lambda seconds: boxes.sh(box, script, seconds=seconds), lambda ran: ran.out)
    assert (ran.code, ran.timed_out) == (None, True)
    assert ran.out == b"before\n"
    assert b"sleep 4711" not in (await boxes.sh(box, "ps -eo args | grep -v grep")).out


async def check_output_is_limited_to_its_bound(boxes: Any, box: Box) -> None:
    """Check that 3 MB are complete, and that with a limit of 1 MiB the first MiB is returned with `cut`."""
    script = "head -c 3000000 /dev/zero | tr '\\0' x"
    whole = await boxes.sh(box, script)
    assert (whole.out, whole.cut) == (b"x" * 3_000_000, False)
    bounded = await boxes.sh(box, script, max_output=1_000_000)
    assert (len(bounded.out), bounded.cut, bounded.code) == (1_000_000, True, 0)


async def check_file_is_written_and_read_unchanged(boxes: Any, box: Box) -> None:
    """Check that bytes of every kind, under any name, are unchanged."""
    content = bytes(range(256)) * 5000
    for name in ("plain", "with space", "ünïcode ✓", "-dash", "quote'\"$(id)", "new\nline", "a" * 200):
        await boxes.provider.write_files(box.name, [File(f"{WORK}/{name}", content)])
        assert await boxes.provider.read(box.name, f"{WORK}/{name}", 10_000_000) == content, name


async def check_unreadable_files_are_refused(boxes: Any, box: Box) -> None:
    """Check a missing file, one too large, a folder, and one outside of the permitted folder."""
    await boxes.provider.write_files(box.name, [File(f"{WORK}/large", b"x" * 1001)])
    for path, fault in (
        (f"{WORK}/none", ProviderFault.NOT_FOUND),
        (f"{WORK}/large", ProviderFault.REFUSED),
        (WORK, ProviderFault.REFUSED),
    ):
        with pytest.raises(ProviderError) as caught:
            await boxes.provider.read(box.name, path, 1000)
        assert caught.value.fault is fault, path
    with pytest.raises(ProviderError) as caught:
        await boxes.provider.write_files(box.name, [File("/etc/passwd", b"root")])
    assert caught.value.fault is ProviderFault.REFUSED


async def test_end_of_a_program_is_reported(boxes: Any) -> None:
    """The exit status is known, and the provider's changes name the sandbox."""
    news = boxes.provider.changes()
    received: set[str] = set()

    async def receive() -> None:
        async for name in news:
            received.add(name)

    hearing = asyncio.create_task(receive())
    while not received:  # its first name shows that it is subscribed
        await boxes.make("exit 0")
        await asyncio.sleep(0.3)
    box = await boxes.make("sleep 0.3; exit 7")
    ended = await boxes.until(box, lambda found: found is not None and found.end is not None)
    assert (ended.alive, ended.end.code, ended.end.out_of_memory) == (False, 7, False)
    async with asyncio.timeout(PATIENCE):
        while box.name not in received:
            await asyncio.sleep(0.02)  # the generator yields it later
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)


async def test_sandbox_is_terminated_and_then_killed(boxes: Any) -> None:
    """A program that handles SIGTERM ends by itself; another one is killed after its grace."""
    fair, deaf = await boxes.make(_FAIR), await boxes.make(_DEAF)
    for box in (fair, deaf):
        await boxes.sh(box, f"until [ -e {WORK}/heard ]; do sleep 0.05; done")
    await asyncio.gather(boxes.provider.stop(fair.name, 20), boxes.provider.stop(deaf.name, 0.5))
    ends = [(await boxes.provider.get(box.name)).end.code for box in (fair, deaf)]
    assert ends == [5, 137]
    await boxes.provider.stop(fair.name, 1)


_FAIR, _DEAF = (f'trap "{what}" TERM; : > {WORK}/heard; while :; do sleep 0.05; done' for what in ("exit 5", ""))


async def test_stopped_sandbox_is_restarted_with_its_files(boxes: Any) -> None:
    """Files remain, and new ones can be written before the restart."""
    box = await boxes.make(f"cat {STATE}/more >> {WORK}/lives; echo life >> {WORK}/lives; {_WAIT}")
    await boxes.sh(box, f"until [ -s {WORK}/lives ]; do sleep 0.05; done")
    await boxes.provider.stop(box.name, 5)
    await boxes.provider.write_files(box.name, [File(f"{STATE}/more", b"more\n")])
    await boxes.provider.start(box.name)
    await boxes.provider.start(box.name)
    assert (await boxes.provider.get(box.name)).alive
    result = await boxes.sh(box, f"until [ $(wc -l < {WORK}/lives) -ge 3 ]; do sleep 0.05; done; cat {WORK}/lives")
    assert result.out == b"life\nmore\nlife\n"


async def test_sandbox_is_paused_and_resumed(boxes: Any) -> None:
    """A repeated request changes nothing, and no process runs meanwhile; a provider that can't pause refuses it."""
    box = await boxes.make(f"while :; do date +%s%N >> {WORK}/ticks; sleep 0.02; done")
    if not boxes.provider.abilities.pause:
        with pytest.raises(ProviderError) as caught:
            await boxes.provider.pause(box.name)
        assert caught.value.fault is ProviderFault.REFUSED
        return
    for _ in range(2):
        await boxes.provider.pause(box.name)
    still = time.time_ns()
    while time.time_ns() < still + 300_000_000:
        assert (await boxes.provider.get(box.name)).state is BoxState.PAUSED
    goes_on = time.time_ns()
    for _ in range(2):
        await boxes.provider.resume(box.name)
    await boxes.sh(box, f"until [ $(tail -n 1 {WORK}/ticks) -gt {goes_on} ]; do sleep 0.05; done")
    ticks = map(int, (await boxes.provider.read(box.name, f"{WORK}/ticks", 10_000_000)).split())
    assert [tick for tick in ticks if still < tick < goes_on] == []


async def test_removed_sandbox_is_not_found(boxes: Any) -> None:
    """A repeated removal changes nothing; later requests raise not found."""
    box = await boxes.make()
    for _ in range(2):
        await boxes.provider.remove(box.name)
    assert await boxes.provider.get(box.name) is None
    assert await boxes.provider.find({HERD: boxes.herd}) == []
    with pytest.raises(ProviderError) as caught:
        await boxes.provider.run(box.name, Command(argv=["true"]))
    assert caught.value.fault is ProviderFault.NOT_FOUND
    await boxes.provider.stop(box.name, 1)


async def test_quarantined_sandbox_is_marked_for_all_replicas(boxes: Any, open_provider: Any) -> None:
    """Another provider object sees the mark; once restored, the sandbox is as before."""
    box = await boxes.make()
    await boxes.provider.stop(box.name, 1)
    await boxes.provider.mark_quarantined(box.name)
    another = await open_provider()
    try:
        assert [(found.name, found.quarantined) for found in await another.find({HERD: boxes.herd})] == [
            (box.name, True)
        ]
        await another.unmark_quarantined(box.name)
    finally:
        await another.close()
    assert (await boxes.provider.get(box.name)).quarantined is False


@pytest.mark.parametrize("open_provider", [name for name in PROVIDERS if name != "remote"], indirect=True)
async def test_oom_kill_is_distinguished_from_a_failure(boxes: Any) -> None:
    """A kill for memory is reported as such; the remote runtime, whose limits have steps, has its own test."""
    box = await boxes.make("exec python3 -c \"b = b'x' * (1 << 30)\"")
    ended = await boxes.until(box, lambda found: found is not None and found.end is not None)
    assert (ended.end.out_of_memory, ended.end.code) == (True, 137)


async def test_missing_image_is_reported(boxes: Any) -> None:
    """The error for a missing image leaves nothing of the attempt."""
    with pytest.raises(ProviderError) as caught:
        await boxes.make(image="sandherd-no-such-image:1")
    assert caught.value.fault is ProviderFault.REFUSED
    assert "sandherd-no-such-image:1" in str(caught.value)
    assert await boxes.provider.find({HERD: boxes.herd}) == []
