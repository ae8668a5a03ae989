"""The file system of a sandbox: nothing that runs inside writes more than its size, however it tries.

Found before: an agent wrote 300 MB beside broker and database, and nothing said that it could.
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

from spawner.end_all import end_all
from spawner.runtimes import disk_images, image_mounts
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.layout import Layout
from spawner.runtimes.opening import Options, open_runtime
from spawner.runtimes.process import ProcessRuntime

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
    """What the images take of the host's disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


async def found_inside(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan) -> Any:
    await runtime.create(plan)
    place = runtime.layout.place(plan.unit)

    async def look() -> Any:
        seen = await runtime.look(plan.unit)
        return seen and not seen.alive

    await eventually(look)
    found = (place.work / "report").read_text().strip()
    assert found, place.runs()[-1].log.read_text(errors="replace")[-2000:]
    return json.loads(found)


def none_mounted(folder: Path) -> bool:
    """Neither a mount nor a loop device of an image that is below this directory."""
    backing = [_text_of(path) for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return not any(str(folder.parent) in text for text in [Path("/proc/self/mountinfo").read_text(), *backing])


def _text_of(path: Path) -> str:
    """Nothing, where another test has let its device go since it was listed."""
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
async def open_sized(open_process: Open) -> Open:
    """A process runtime whose sandboxes have a file system of `SIZE` MiB each."""

    async def open_it(code: str, **options: Any) -> ProcessRuntime:
        runtime = await open_process(PRELUDE + code, disk_megabytes=SIZE, **options)
        if runtime.capabilities.disk != "file system":
            pytest.fail("no file system can be mounted here: run the tests as root", pytrace=False)
        return runtime

    return open_it


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_sandbox_writes_more_than_its_disk(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually, attack: str
) -> None:
    """By bytes, inodes, links, holes or files without a name: it sees that there is no space."""
    runtime = await open_sized(ATTACKS[attack])
    found = await found_inside(eventually, runtime, plan_for("sbx-one"))
    seen = await runtime.look("sbx-one")
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


async def test_no_sandbox_fills_the_disk_by_its_log(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Its worker's log is outside of its file system, and has a limit of its own; reopening it gives no other way."""
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
    (run,) = runtime.layout.place("sbx-one").runs()
    assert run.log.stat().st_size <= MIB
    written = sum(path.stat().st_blocks * 512 for path in run.folder.rglob("*"))
    assert written <= 2 * MIB, "nothing else grew beside it"


async def test_a_full_sandbox_leaves_its_neighbour_alone(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Each has its own."""
    code = """
if os.environ['SANDHERD_SANDBOX_ID'] == 'sbx-one': fill('junk')
tell(own=tried(lambda: pathlib.Path('small').write_text('x')))
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    found = await found_inside(eventually, runtime, plan_for("sbx-two"))
    assert found["own"] is None


async def test_a_full_sandbox_can_be_recovered(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Its bytes and its inodes are all taken: a worker is started once more all the same."""
    code = """
if '--recover' in sys.argv: tell(again=True); sys.exit(0)
def make():
    for number in range(400_000): pathlib.Path('f%d' % number).touch()
fill('junk'); tried(make); tell(); os.kill(os.getpid(), signal.SIGKILL)
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await runtime.recover(plan_for("sbx-one"))
    place = runtime.layout.place("sbx-one")
    await eventually(lambda: '"again": true' in (place.work / "report").read_text())


async def test_a_disk_outlives_its_spawner_and_a_restart_of_the_host(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """It goes on while no spawner runs, and is mounted again where it is not any more."""
    runtime = await open_sized("pathlib.Path('note').write_text('mine'); tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    place = runtime.layout.place("sbx-one")
    image_mounts.detach(place.folder)  # as the host does when it goes down
    assert not place.work.exists()
    again = await open_runtime(Options(root=runtime.layout.root, aside=runtime.layout.aside, disk_megabytes=SIZE))
    assert (place.work / "note").read_text() == "mine"
    await again.close()


async def test_a_disk_is_kept_and_taken_back(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """What is put aside can be looked at there, and is the same when it is put back."""
    runtime = await open_sized("pathlib.Path('note').write_text('mine'); tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await runtime.keep("sbx-one")
    assert await runtime.find_kept() == ["sbx-one"]
    assert (runtime.layout.aside / "sbx-one" / "work" / "note").read_text() == "mine"
    assert await runtime.find_all() == []
    await runtime.take_back("sbx-one")
    assert (runtime.layout.place("sbx-one").work / "note").read_text() == "mine"
    assert await runtime.find_kept() == []


async def test_what_is_left_over_is_removed(open_sized: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A file system of a sandbox that has no directory, as after a removal that was cut off."""
    runtime = await open_sized("tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    image = runtime.layout.disks.image("sbx-one")
    image_mounts.detach(runtime.layout.place("sbx-one").folder)
    runtime.layout.place("sbx-one").folder.rmdir()
    Layout(runtime.layout.root, runtime.layout.aside).disks.reattach(list)
    assert not image.exists()
    await eventually(lambda: none_mounted(runtime.layout.root))
    await runtime.remove("sbx-one")


async def test_an_image_that_was_not_finished_is_removed(open_sized: Open) -> None:
    """What a spawner that was killed while it made one leaves."""
    runtime = await open_sized("")
    disks = runtime.layout.disks
    draft = disks.folder / "sbx-one.img.1.new"
    draft.touch()
    disks.reattach(list)
    assert not draft.exists()
    assert {path.stat().st_mode & 0o777 for path in disks.folder.iterdir()} == {0o600}


async def test_a_disk_that_was_mounted_by_half_is_completed(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Its spawner was killed between the mounts: its runs are on the host again after the next start."""
    runtime = await open_sized("tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    place = runtime.layout.place("sbx-one")
    image_mounts.detach(place.folder / "run")
    assert not place.runs()
    runtime.layout.disks.reattach(runtime.layout.folders)
    assert place.runs()
    assert place.folder.stat().st_mode & 0o777 == 0o700


async def test_no_limit_is_stated_where_there_is_none(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, and on a host without `mkfs.ext4`: sandboxes run all the same. `runtimes` and `doctor` read this."""
    assert (await open_process("")).capabilities.disk == "none"
    monkeypatch.setattr(disk_images, "_SBIN", str(tmp_path))
    runtime = await open_process(PRELUDE + "tell(ran=True)", disk_megabytes=SIZE)
    assert runtime.capabilities.disk == "none"
    assert (await found_inside(eventually, runtime, plan_for("sbx-one")))["ran"]
    assert none_mounted(runtime.layout.root)


async def test_a_disk_that_refuses_writes_is_mounted_again(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """As the host's full disk leaves it, and also where it is not mounted: what was stored before is recovered."""
    code = """
if '--recover' in sys.argv: tell(again=pathlib.Path('note').read_text()); sys.exit(0)
out = os.open('note', os.O_WRONLY | os.O_CREAT); os.write(out, b'mine'); os.fsync(out); tell()
os.fsync(report); os.kill(os.getpid(), signal.SIGKILL)
"""
    runtime = await open_sized(code)
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    place = runtime.layout.place("sbx-one")
    stop_writes(place.folder)
    await runtime.recover(plan_for("sbx-one"))
    await eventually(lambda: '"again": "mine"' in (place.work / "report").read_text())
    await runtime.stop("sbx-one", 0)
    image_mounts.detach(place.folder)
    seen = await runtime.look("sbx-one")
    assert seen
    assert seen.runs, "not taken for one that was never started"
    await runtime.recover(plan_for("sbx-one"))
    assert len(place.runs()) == 3


def stop_writes(place: Path) -> None:
    """Let ext4 stop as after an error of its disk: `EXT4_IOC_SHUTDOWN` without writing its journal."""
    folder = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, 0x8004587D, struct.pack("=I", 2))
    finally:
        os.close(folder)


async def test_a_spawner_killed_while_it_mounts_leaves_no_loop_device(open_sized: Open, eventually: Eventually) -> None:
    """The kernel frees the device with the process that took it."""
    runtime = await open_sized("")
    (template,) = runtime.layout.disks.folder.glob(".template-*")
    code = (
        "import os, pathlib, signal, sys; from spawner.runtimes import image_mounts as mounts\n"
        "image = pathlib.Path(sys.argv[1])\n"
        "mounts._loop(os.open(image, os.O_RDWR), mounts._label(image)); print(mounts.is_in_use(image), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(template), stdout=subprocess.PIPE)
    out, _ = await killed.communicate()
    assert (killed.returncode, out) == (-9, b"True\n")
    await eventually(lambda: not image_mounts.is_in_use(template))


async def test_there_are_as_many_disks_as_sandboxes(open_sized: Open, eventually: Eventually) -> None:
    """More than the host has loop devices; each its own, each given back."""
    runtime = await open_sized("")
    disks = runtime.layout.disks
    before = len(list(Path("/sys/block").glob("loop*")))
    places = [runtime.layout.place(f"sbx-{number}").folder for number in range(before + 1)]
    try:
        await asyncio.gather(*(asyncio.to_thread(disks.attach, place) for place in places))
        assert len({place.stat().st_dev for place in places}) == len(places)
    finally:
        await asyncio.gather(*(asyncio.to_thread(disks.remove, place) for place in places))
    await eventually(lambda: none_mounted(runtime.layout.root))


async def test_what_was_put_aside_is_not_mounted_after_an_ordered_stop(
    open_sized: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """As `down` leaves a host: no mount and no loop device; the next start finds all as it was."""
    runtime = await open_sized("pathlib.Path('note').write_text('mine'); tell()")
    await found_inside(eventually, runtime, plan_for("sbx-one"))
    await found_inside(eventually, runtime, plan_for("sbx-two"))
    await runtime.keep("sbx-one")
    assert await end_all(runtime, 0) == []
    await eventually(lambda: none_mounted(runtime.layout.root))
    await runtime.take_back("sbx-one")
    assert (runtime.layout.place("sbx-one").work / "note").read_text() == "mine"
