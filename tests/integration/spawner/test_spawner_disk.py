"""The file system of a sandbox: no process inside writes more than its size.

Found before: an agent wrote 300 MB beside the broker and the database, and nothing indicated that it could.

Invariant: what the processes of a sandbox write, in bytes and in inodes, is limited by the sandbox's own file system,
which ends with it; if there is none, the runtime states so.
"""

import asyncio
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes import disk_images, image_mounts
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.errors import RuntimeFailedError
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from spawner.runtimes.layout import Layout
from spawner.runtimes.process import ProcessRuntime
from spawner.sandbox_shutdown import end_all

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

MIB = 1024 * 1024
SIZE = 48
PRELUDE = """
import errno, json, os, pathlib, signal, subprocess, sys
faults = []
def tried(act):
    try: act(); return None
    except OSError as error: faults.append(error.errno); return error.errno
def fill(path, flags=os.O_WRONLY | os.O_CREAT):
    written, out = 0, os.open(path, flags, 0o600)
    try:
        for size in (1 << 20, 4096, 1):
            try:
                while written < 200 << 20: written += os.write(out, b'x' * size)
            except OSError as error: faults.append(error.errno)
    finally: os.close(out)
    return written
report = os.open('report', os.O_RDWR | os.O_CREAT)
os.pwrite(report, b' ' * 4096, 0)  # before anything is full
def tell(**found):
    os.pwrite(report, json.dumps(found | {'faults': sorted(set(faults))}).encode(), 0)
"""
ATTACKS = {
    "one_file": "tell(written=fill('junk'))",
    "every_folder": "tell(written=sum(fill(f'/sandbox/{name}/junk') for name in ('work', 'home', 'state')))",
    "many_small_files": """
def make():
    for number in range(400_000): pathlib.Path('f%d' % number).touch()
tried(make); tell(made=len(os.listdir('.')))
""",
    "hard_links": """
pathlib.Path('one').write_text('x')
def link():
    for number in range(100_000): os.link('one', f'{number:060d}')
tried(link); tell(written=fill('junk'))
""",
    "fallocate": """
out = os.open('a', os.O_RDWR | os.O_CREAT); tried(lambda: os.posix_fallocate(out, 0, 200 << 20)); tell()
""",
    "sparse": """
out = os.open('a', os.O_RDWR | os.O_CREAT); os.truncate('a', 40 << 30)
def scatter():
    for number in range(200_000): os.pwrite(out, b'x', number * 65536)
tried(scatter); tell(blocks=os.stat('a').st_blocks * 512)
""",
    "deleted_but_open": """
held = []
def hold():
    for number in range(40):
        out = os.open('a', os.O_RDWR | os.O_CREAT); os.unlink('a'); held.append(out)
        for _ in range(5): os.write(out, b'x' * (1 << 20))
tried(hold); tell(written=sum(os.fstat(out).st_size for out in held))
""",
}


def allocated(folder: Path) -> int:
    """The disk space of the host that the images take."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


async def found_inside(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan) -> Any:
    await runtime.create(plan)
    place = runtime.layout.directory(plan.unit)

    async def look() -> Any:
        seen = await runtime.observe(plan.unit)
        return seen and not seen.alive

    await eventually(look)
    found = (place.work / "report").read_text().strip()
    assert found, place.runs()[-1].log.read_text(errors="replace")[-2000:]
    return json.loads(found)


def none_mounted(folder: Path) -> bool:
    """Wait until there is no mount and no loop device of an image below this directory."""
    backing = [_text_of(path) for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return not any(str(folder.parent) in text for text in [Path("/proc/self/mountinfo").read_text(), *backing])


def _text_of(path: Path) -> str:
    """The content of a file; empty if another test has released its device since it was listed."""
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
async def open_sized(open_process: Open) -> Open:
    """Opens process runtimes whose sandboxes each have a file system of `SIZE` MiB."""

    async def open_it(code: str, **options: Any) -> ProcessRuntime:
        runtime = await open_process(PRELUDE + code, disk_megabytes=SIZE, **options)
        if runtime.capabilities.disk != "file system":
            pytest.fail("no file system can be mounted here: run the tests as root", pytrace=False)
        return runtime

    return open_it


@pytest.mark.parametrize("attack", ATTACKS)
async def test_sandbox_writes_no_more_than_its_disk(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually, attack: str
) -> None:
    """A sandbox gets an error for lack of space: bytes, inodes, links, sparse files and unnamed files are limited."""
    runtime = await open_sized(ATTACKS[attack])
    found = await found_inside(eventually, runtime, plan_for("sbx-one"))
    seen = await runtime.observe("sbx-one")
    assert seen
    assert seen.end
    assert seen.end.code == 0, "how it ended is known although its disk is full"
    assert found["faults"], "nothing stopped it"
    assert set(found["faults"]) <= {28, 31, 122}, "ENOSPC, EMLINK or EDQUOT"
    assert found.get("written", 0) <= SIZE * MIB
    assert allocated(runtime.layout.disks.folder) <= 2 * SIZE * MIB
    await runtime.remove("sbx-one")
    await eventually(lambda: none_mounted(runtime.layout.root))
    assert not runtime.layout.disks.image("sbx-one").exists()


async def test_log_of_a_worker_is_limited(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """The worker's log is outside of its file system and has its own limit, which reopening the log does not evade."""
    code = """
line = b'x' * 4095 + b'\\n'
for out in (1, 2):
    for number in range(10_000): os.write(out, line)
def reopen():
    out = os.open('/proc/self/fd/2', os.O_WRONLY)
    for number in range(10_000): os.write(out, line)
tried(reopen); tell()
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    (run,) = runtime.layout.directory("sbx-one").runs()
    assert run.log.stat().st_size <= MIB
    written = sum(path.stat().st_blocks * 512 for path in run.folder.rglob("*"))
    assert written <= 2 * MIB, "nothing else grew beside it"


async def test_full_sandbox_does_not_affect_its_neighbour(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A full sandbox does not affect another one: each has its own disk."""
    code = """
if os.environ['SANDHERD_SANDBOX_ID'] == 'sbx-one': fill('junk')
tell(own=tried(lambda: pathlib.Path('small').write_text('x')))
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    found = await found_inside(eventually, runtime, plan_for("sbx-two"))
    assert found["own"] is None


async def test_full_sandbox_can_be_recovered(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A worker is started again though all bytes and inodes of its sandbox are used."""
    code = """
if '--recover' in sys.argv: tell(again=True); sys.exit(0)
def make():
    for number in range(400_000): pathlib.Path('f%d' % number).touch()
fill('junk'); tried(make); tell(); os.kill(os.getpid(), signal.SIGKILL)
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await runtime.recover(plan_for("sbx-one"))
    place = runtime.layout.directory("sbx-one")
    await eventually(lambda: '"again": true' in (place.work / "report").read_text())


async def test_disk_survives_its_spawner_and_a_restart_of_the_host(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """The disk stays usable while no spawner runs, and is mounted again if it is not mounted."""
    runtime = await open_sized("pathlib.Path('note').write_text('mine'); tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    place = runtime.layout.directory("sbx-one")
    image_mounts.detach(place.folder)  # as the host does when it goes down
    assert not place.work.exists()
    again = await open_runtime(
        ProcessRuntimeOptions(root=runtime.layout.root, quarantine=runtime.layout.quarantine_root, disk_megabytes=SIZE)
    )
    assert (place.work / "note").read_text() == "mine"
    await again.close()


async def test_disk_is_quarantined_and_restored(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A quarantined disk can be read in its place, and is unchanged when it is restored."""
    runtime = await open_sized("pathlib.Path('note').write_text('mine'); tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await runtime.quarantine("sbx-one")
    assert await runtime.list_quarantined() == ["sbx-one"]
    assert (runtime.layout.quarantine_root / "sbx-one" / "work" / "note").read_text() == "mine"
    assert await runtime.find_all() == []
    await runtime.unquarantine("sbx-one")
    assert (runtime.layout.directory("sbx-one").work / "note").read_text() == "mine"
    assert await runtime.list_quarantined() == []


async def test_disk_without_a_sandbox_is_removed(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """The file system of a sandbox whose directory is missing, as after an interrupted removal, is removed."""
    runtime = await open_sized("tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    image = runtime.layout.disks.image("sbx-one")
    image_mounts.detach(runtime.layout.directory("sbx-one").folder)
    runtime.layout.directory("sbx-one").folder.rmdir()
    Layout(runtime.layout.root, runtime.layout.quarantine_root).disks.reattach(list)
    assert not image.exists()
    await eventually(lambda: none_mounted(runtime.layout.root))
    await runtime.remove("sbx-one")


async def test_unfinished_image_is_removed(open_sized: Open) -> None:
    """The image that a killed spawner has left unfinished is removed."""
    runtime = await open_sized("")
    disks = runtime.layout.disks
    draft = disks.folder / "sbx-one.img.1.new"
    draft.touch()
    disks.reattach(list)
    assert not draft.exists()
    assert {path.stat().st_mode & 0o777 for path in disks.folder.iterdir()} == {0o600}


async def test_partly_mounted_disk_is_completed(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A disk with incomplete mounts, because the spawner was killed between them, is completed at the next start."""
    runtime = await open_sized("tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    place = runtime.layout.directory("sbx-one")
    image_mounts.detach(place.folder / "run")
    assert not place.runs()
    runtime.layout.disks.reattach(runtime.layout.folders)
    assert place.runs()
    assert place.folder.stat().st_mode & 0o777 == 0o700


async def test_missing_disk_limit_is_stated(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0, and on a host without `mkfs.ext4`, sandboxes run without a limit, which `runtimes` and `doctor` show."""
    assert (await open_process("", disk_megabytes=0)).capabilities.disk == "none"
    monkeypatch.setattr(disk_images, "_SBIN", str(tmp_path))
    runtime = await open_process(PRELUDE + "tell(ran=True)", disk_megabytes=SIZE)
    assert runtime.capabilities.disk == "none"
    assert (await found_inside(eventually, runtime, plan_for("sbx-one")))["ran"]
    assert none_mounted(runtime.layout.root)


async def test_read_only_disk_is_mounted_again(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A disk that is read-only after a full host disk, or unmounted, is mounted again with all that was stored."""
    code = """
if '--recover' in sys.argv: tell(again=pathlib.Path('note').read_text()); sys.exit(0)
out = os.open('note', os.O_WRONLY | os.O_CREAT); os.write(out, b'mine'); os.fsync(out); tell()
os.fsync(report); os.kill(os.getpid(), signal.SIGKILL)
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    place = runtime.layout.directory("sbx-one")
    stop_writes(place.folder)
    await runtime.recover(plan_for("sbx-one"))
    await eventually(lambda: '"again": "mine"' in (place.work / "report").read_text())
    await runtime.stop("sbx-one", 0)
    image_mounts.detach(place.folder)
    seen = await runtime.observe("sbx-one")
    assert seen
    assert seen.runs, "not taken for one that was never started"
    await runtime.recover(plan_for("sbx-one"))
    assert len(place.runs()) == 3


async def test_later_sandbox_does_not_keep_a_disk_busy(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A private mount is in no later copy of the host's mount namespace, so the disk can be mounted again."""
    code = """
if '--recover' in sys.argv: tell(again=True); sys.exit(0)
tell()
if os.environ['SANDHERD_SANDBOX_ID'] == 'sbx-later': signal.pause()
os.fsync(report); os.kill(os.getpid(), signal.SIGKILL)
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await runtime.create(plan_for("sbx-later"))
    later, one = runtime.layout.directory("sbx-later"), runtime.layout.directory("sbx-one")
    await eventually(lambda: (later.work / "report").is_file() and "faults" in (later.work / "report").read_text())
    stop_writes(one.folder)
    await runtime.recover(plan_for("sbx-one"))
    await eventually(lambda: '"again": true' in (one.work / "report").read_text())
    seen = await runtime.observe("sbx-later")
    assert seen
    assert seen.alive


async def test_process_that_holds_a_disk_is_reported(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign mount namespace that holds a disk is not changed: the recovery fails and names the process."""
    monkeypatch.setattr("spawner.runtimes.sized_disks._FREE_SECONDS", 0.5)
    runtime = await open_sized("tell(); os.fsync(report); os.kill(os.getpid(), signal.SIGKILL)")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    words = ["unshare", "--mount", "--propagation=private", "sh", "-c", "echo ready; read -r _"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220  # brief
        assert holder.stdout is not None
        await asyncio.to_thread(holder.stdout.readline)
        stop_writes(runtime.layout.directory("sbx-one").folder)
        with pytest.raises(RuntimeFailedError, match=rf"in use by: (\d+, )*{holder.pid}(,|;)"):
            await runtime.recover(plan_for("sbx-one"))


def stop_writes(place: Path) -> None:
    """Stop ext4 as after a disk error: `EXT4_IOC_SHUTDOWN` without writing its journal."""
    folder = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, 0x8004587D, struct.pack("=I", 2))
    finally:
        os.close(folder)


async def test_spawner_killed_during_a_mount_leaves_no_loop_device(open_sized: Open, eventually: Eventually) -> None:
    """The kernel frees the loop device of a spawner that is killed during a mount."""
    runtime = await open_sized("")
    (template,) = runtime.layout.disks.folder.glob(".template-*")
    code = (
        "import os, pathlib, signal, sys; from spawner.runtimes import image_mounts as mounts\n"
        "image = pathlib.Path(sys.argv[1])\n"
        "mounts._set_up_device(os.open(image, os.O_RDWR), mounts._label(image))\n"
        "print(mounts.is_in_use(image), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(template), stdout=subprocess.PIPE)
    out, _ = await killed.communicate()
    assert (killed.returncode, out) == (-9, b"True\n")
    await eventually(lambda: not image_mounts.is_in_use(template))


async def test_there_are_as_many_disks_as_sandboxes(open_sized: Open, eventually: Eventually) -> None:
    """There can be more sandbox disks than the host has loop devices; each is separate and is freed."""
    runtime = await open_sized("")
    disks = runtime.layout.disks
    before = len(list(Path("/sys/block").glob("loop*")))
    places = [runtime.layout.directory(f"sbx-{number}").folder for number in range(before + 1)]
    try:
        await asyncio.gather(*(asyncio.to_thread(disks.attach, place) for place in places))
        assert len({place.stat().st_dev for place in places}) == len(places)
    finally:
        await asyncio.gather(*(asyncio.to_thread(disks.remove, place) for place in places))
    await eventually(lambda: none_mounted(runtime.layout.root))


async def test_quarantined_disk_is_unmounted_after_an_orderly_stop(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """After `down` there is no mount and no loop device; the next start finds every disk unchanged."""
    runtime = await open_sized("pathlib.Path('note').write_text('mine'); tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await found_inside(eventually, runtime, plan_for("sbx-two"))
    await runtime.quarantine("sbx-one")
    assert await end_all(runtime, 0) == []
    await eventually(lambda: none_mounted(runtime.layout.root))
    await runtime.unquarantine("sbx-one")
    assert (runtime.layout.directory("sbx-one").work / "note").read_text() == "mine"
