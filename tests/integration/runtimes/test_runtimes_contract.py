"""The requirements of every runtime, tested in the same way: the process runtime, and every provider."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from sandherd.stack.nats import free_port
from spawner.main import compose
from spawner.runtimes.commands import Address, Command, File
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault
from tests.doubles.kubernetes.provider import opened
from tests.doubles.toolchains import Contents
from tests.integration.runtimes.conftest import PROVIDERS
from tests.integration.runtimes.opened_runtimes import Open, Sandboxes, box_runtimes, process_runtimes
from tests.integration.spawner.conftest import ProjectUser
from tests.late_commands import ran_out_of_time
from tests.patience import PATIENCE
from tests.polling import eventually

REAL = ("process", "docker")
"""The real runtimes; the others are doubles here, whose programs are processes of this host."""


@pytest.fixture(params=["process", *PROVIDERS])
def kind(request: pytest.FixtureRequest) -> str:
    """Each runtime in turn."""
    name: str = request.param
    return name


@pytest.fixture
def image(kind: str, request: pytest.FixtureRequest) -> Iterator[Contents | None]:
    """The image of the double's boxes, with the worker in it: uploading one takes seconds of a core."""
    doubles = {"daytona": "daytona_double", "remote": "remote_double", "kubernetes": "kubernetes_cluster"}
    if kind not in doubles:
        yield None
        return
    double = request.getfixturevalue(doubles[kind])
    found: Contents = double.kubelet.image if kind == "kubernetes" else double.image
    found.worker = request.getfixturevalue("packed_worker")
    yield found
    found.worker = None


@pytest.fixture
def open_it(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    image: Contents | None,  # created before the first box
) -> Open:
    """A function that opens the runtime; each call opens another one."""
    if kind == "process":
        return process_runtimes(tmp_path)
    # Without a network its worker gives up after a while, which under load may happen during a test.
    return box_runtimes(request.getfixturevalue("open_docker_reaching" if kind == "docker" else f"open_{kind}"))


@pytest.fixture
async def sandboxes(open_it: Open, herd: Broker) -> AsyncIterator[Sandboxes]:
    """The sandboxes of one test's herd."""
    name = uuid4().hex[:16]
    made = Sandboxes(await open_it(name), open_it, herd, name)
    try:
        yield made
    finally:
        await made.close()


async def test_sandbox_created_twice_is_one(sandboxes: Sandboxes) -> None:
    """Concurrent requests start one worker."""
    plan = sandboxes.plan()
    await asyncio.gather(*(sandboxes.runtime.create(plan) for _ in range(3)))
    await sandboxes.runtime.create(plan)
    (seen,) = await sandboxes.runtime.find_all()
    assert (seen.unit, seen.alive, seen.runs, seen.end) == (plan.unit, True, 1, None)


async def test_interrupted_creation_is_completed_once(sandboxes: Sandboxes) -> None:
    """If the reply is lost with its requester, the next spawner's request leads to one sandbox."""
    plan = sandboxes.plan()
    requested = asyncio.create_task(sandboxes.runtime.create(plan))
    await asyncio.sleep(0)
    requested.cancel()
    await asyncio.gather(requested, return_exceptions=True)
    another = await sandboxes.again()
    try:
        await another.create(plan)
        assert [(seen.unit, seen.alive, seen.runs) for seen in await another.find_all()] == [(plan.unit, True, 1)]
    finally:
        await another.close()


async def test_sandboxes_are_found_by_their_own_herd_only(sandboxes: Sandboxes) -> None:
    """After a restart sandboxes have their labels; another herd sees none of them."""
    made = {await sandboxes.make(), await sandboxes.make()}
    mine, others = await sandboxes.again(), await sandboxes.again("another")
    try:
        found = await mine.find_all()
        assert await others.find_all() == []
    finally:
        await mine.close()
        await others.close()
    assert {seen.unit for seen in found} == made
    assert {(seen.project, seen.alive) for seen in found} == {("p1", True)}


async def test_commands_and_files_of_a_sandbox(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands have an exit status, folder, variables, a time limit and limited output; files are read or refused."""
    monkeypatch.setenv("SPAWNERS_OWN", "secret")
    unit = await sandboxes.make()
    await check_exit_status_of_a_command_is_reported(sandboxes, unit)
    await check_command_has_its_folder_and_variables(sandboxes, unit)
    await check_command_over_its_time_is_ended(sandboxes, unit)
    await check_output_is_limited_to_its_bound(sandboxes, unit)
    await check_file_is_written_and_read_unchanged(sandboxes, unit)
    await check_unreadable_files_are_refused(sandboxes, unit)


async def check_exit_status_of_a_command_is_reported(sandboxes: Sandboxes, unit: str) -> None:
    """Check that every exit status is reported, also for a signal and a missing program."""
    for code in (0, 1, 124, 137, 255):
        ran = await sandboxes.sh(unit, f"echo out; echo err >&2; exit {code}")
        assert (ran.code, ran.timed_out, ran.cut) == (code, False, False)
        assert b"out\n" in ran.out
        assert b"err\n" in ran.out + ran.err
    assert (await sandboxes.sh(unit, "kill -9 $$")).code == 137
    assert (await sandboxes.runtime.run(unit, Command(argv=["sandherd-has-none"]))).code in {126, 127}


async def check_command_has_its_folder_and_variables(sandboxes: Sandboxes, unit: str) -> None:
    """Check that a command runs in the work tree or the named folder, without the spawner's variables."""
    ran = await sandboxes.sh(unit, "mkdir 'a b'; pwd; env", environment={"GIVEN": "ü 'x'"})
    assert ran.out.splitlines()[0].endswith(b"/work")
    assert "GIVEN=ü 'x'" in ran.out.decode().splitlines()
    assert b"SPAWNERS_OWN" not in ran.out
    assert (await sandboxes.sh(unit, "pwd", folder="work/a b")).out.endswith(b"/work/a b\n")
    with pytest.raises(RuntimeFailedError):
        await sandboxes.sh(unit, "pwd", folder="../..")


async def test_sandbox_is_limited_to_its_cores(sandboxes: Sandboxes, kind: str) -> None:
    """A busy program gets its share, if the runtime is real; a double only has to declare the limit.

    A runtime without core limits states that.
    """
    held = {"process": "cgroup", "remote": "none"}.get(kind, "provider")
    assert sandboxes.runtime.capabilities.cores == held
    if kind not in REAL:
        return
    plan = sandboxes.plan(limits=SandboxLimits(memory_mb=256, processes=100, cores=0.25))
    await sandboxes.runtime.create(plan)
    busy = "import time\nbegan = time.monotonic()\nwhile time.monotonic() < began + 1.5: pass\n"
    program = "print(time.process_time() / (time.monotonic() - began))"
    share = float((await sandboxes.sh(plan.unit, f'exec python3 -c "{busy}{program}"', seconds=PATIENCE)).out)
    assert 0 < share < 0.45  # other processes may leave it less than its share, and its worker uses a part of it


async def check_command_over_its_time_is_ended(sandboxes: Sandboxes, unit: str) -> None:
    """Check that the output until then is returned, and that no process of the command remains."""
    script = "echo before; sleep 4711 & exec sleep 4711"
    ran = await ran_out_of_time(lambda seconds: sandboxes.sh(unit, script, seconds=seconds), lambda ran: ran.out)
    assert (ran.code, ran.timed_out, ran.out) == (None, True, b"before\n")
    left = await sandboxes.sh(unit, "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null")
    assert b"sleep 4711 \n" not in left.out


async def check_output_is_limited_to_its_bound(sandboxes: Sandboxes, unit: str) -> None:
    """Check that 3 MB are complete, and that with a limit of 1 MiB the first MiB is returned with `cut`."""
    script = "head -c 3000000 /dev/zero | tr '\\0' x"
    whole = await sandboxes.sh(unit, script)
    assert (whole.out, whole.cut) == (b"x" * 3_000_000, False)
    bounded = await sandboxes.sh(unit, script, max_output=1_000_000)
    assert (len(bounded.out), bounded.cut, bounded.code) == (1_000_000, True, 0)


async def check_file_is_written_and_read_unchanged(sandboxes: Sandboxes, unit: str) -> None:
    """Check that bytes of every kind, under any name, in new folders, are unchanged; a second write replaces them."""
    content = bytes(range(256)) * 5000
    for name in ("plain", "with space", "ünïcode ✓", "-dash", "quote'\"$(id)", "new\nline", "a" * 200):
        for written in (b"first", content):
            await sandboxes.runtime.write_files(unit, [File(f"work/a folder/{name}", written, 0o640)])
        assert await sandboxes.runtime.read(unit, f"work/a folder/{name}", 10_000_000) == content
    result = await sandboxes.sh(unit, "stat -c '%a %s' 'a folder/with space'; : > 'a folder/mine'; sha256sum < -dash")
    assert result.out.startswith(f"640 {len(content)}\n".encode())


async def check_unreadable_files_are_refused(sandboxes: Sandboxes, unit: str) -> None:
    """Check files that are too large, a folder, a link, outside of the sandbox's folders, or missing."""
    await sandboxes.runtime.write_files(unit, [File("work/large", b"x" * 1001)])
    await sandboxes.sh(unit, "ln -s /etc/passwd link")
    assert await sandboxes.runtime.read(unit, "work/none", 1000) is None
    for path in ("work/large", "work", "work/link", "../etc/passwd", "/etc/passwd", "work/../../x"):
        with pytest.raises(RuntimeFailedError) as caught:
            await sandboxes.runtime.read(unit, path, 1000)
        assert caught.value.fault is RuntimeFault.REFUSED, path
    with pytest.raises(RuntimeFailedError) as caught:
        await sandboxes.runtime.write_files(unit, [File("/etc/passwd", b"root")])
    assert caught.value.fault is RuntimeFault.REFUSED


async def test_removed_sandbox_is_not_found(sandboxes: Sandboxes) -> None:
    """A repeated removal changes nothing; later requests state that there is none."""
    unit = await sandboxes.make()
    for _ in range(2):
        await sandboxes.runtime.remove(unit)
    assert await sandboxes.runtime.observe(unit) is None
    assert await sandboxes.runtime.find_all() == []
    for requested in (
        sandboxes.sh(unit, "true"),
        sandboxes.runtime.write_files(unit, [File("work/x", b"")]),
        sandboxes.runtime.read(unit, "work/x", 1),
    ):
        with pytest.raises(RuntimeFailedError) as caught:
            await requested
        assert caught.value.fault is RuntimeFault.LOST


async def test_sandbox_is_paused_and_resumed_or_that_is_refused(sandboxes: Sandboxes) -> None:
    """The runtime pauses and resumes, or refuses, as its capabilities state."""
    unit = await sandboxes.make()
    if not sandboxes.runtime.capabilities.can_pause:
        with pytest.raises(RuntimeFailedError) as caught:
            await sandboxes.runtime.pause(unit)
        assert caught.value.fault is RuntimeFault.REFUSED
        return
    for _ in range(2):
        await sandboxes.runtime.pause(unit)
    assert (await _look(sandboxes, unit)).frozen is True
    with pytest.raises(RuntimeFailedError) as caught:
        await sandboxes.sh(unit, "true")
    assert not caught.value.permanent
    for _ in range(2):
        await sandboxes.runtime.resume(unit)
    assert (await sandboxes.sh(unit, "echo on")).out == b"on\n"


async def test_worker_stopped_before_its_start_reports_its_end(sandboxes: Sandboxes) -> None:
    """A worker that waits for permission ends with its status, and its files can be read afterwards."""
    unit = await sandboxes.make()
    await eventually(lambda: sandboxes.runtime.read(unit, "state/worker.nk", 1000))
    await sandboxes.runtime.stop(unit, 20)
    end = (await _look(sandboxes, unit)).end
    assert end is not None
    assert (end.code, end.not_started) == (7, True)
    assert await sandboxes.runtime.read(unit, "state/task.json", 100_000)


async def _look(sandboxes: Sandboxes, unit: str) -> Any:
    return await sandboxes.runtime.observe(unit)


@pytest.fixture
def open_reaching(kind: str, open_it: Open, request: pytest.FixtureRequest) -> Open:
    """Opens the runtime so that its sandboxes reach a broker on this host, if that needs other settings."""
    try:
        return box_runtimes(request.getfixturevalue(f"open_{kind}_reaching"))
    except pytest.FixtureLookupError:
        return open_it


@pytest.fixture
def port_of(kind: str, request: pytest.FixtureRequest) -> Callable[[str], int]:
    """A port of a sandbox that is reachable, and on which no program listens yet."""
    if kind == "remote":
        double = request.getfixturevalue("remote_double")
        return lambda unit: int(double.of(unit).machine.work_ports[0])
    return lambda unit: free_port()


async def test_port_of_a_sandbox_is_reached_with_its_headers(
    open_reaching: Open, port_of: Callable[[str], int], herd: Broker
) -> None:
    """A server in the sandbox responds at its address with the headers, and not without them if there are any."""
    sandboxes = Sandboxes(await open_reaching("ports"), open_reaching, herd, "ports")
    try:
        unit = await sandboxes.make()
        port = port_of(unit)
        assert sandboxes.runtime.capabilities.ports
        serving = f"setsid python3 -m http.server {port} --bind 0.0.0.0 >/dev/null 2>&1 & echo hello > told"
        assert (await sandboxes.sh(unit, serving)).code == 0
        address = await sandboxes.runtime.address(unit, port)
        assert await eventually(lambda: _got(address)) == "hello\n"
        for name, secret in address.headers.items():
            assert secret not in repr(address)
            assert await _got(replace(address, headers={})) is None
            assert await _got(replace(address, headers={name: "another"})) is None
        await sandboxes.runtime.remove(unit)
        with pytest.raises(RuntimeFailedError) as caught:
            await sandboxes.runtime.address(unit, port)
        assert caught.value.fault is RuntimeFault.LOST
    finally:
        await sandboxes.close()


async def _got(address: Address) -> str | None:
    try:
        async with (
            aiohttp.ClientSession(headers=address.headers) as http,
            http.get(f"{address.url}/told", allow_redirects=False) as answer,
        ):
            return await answer.text() if answer.status == 200 else None
    except aiohttp.ClientError:
        return None


@pytest.fixture(params=["docker", "kubernetes"])
def open_closed(request: pytest.FixtureRequest) -> Open:
    """A runtime whose configuration makes no port of its sandboxes reachable."""
    if request.param == "docker":
        return box_runtimes(request.getfixturevalue("open_docker"))
    return box_runtimes(opened(request.getfixturevalue("kubernetes_cluster"), closed=True))


async def test_runtime_without_ports_refuses_an_address(open_closed: Open, herd: Broker) -> None:
    """The capabilities state it, and the refusal has the runtime's name."""
    sandboxes = Sandboxes(await open_closed("closed"), open_closed, herd, "closed")
    try:
        assert not sandboxes.runtime.capabilities.ports
        unit = await sandboxes.make()
        with pytest.raises(RuntimeFailedError, match=f"{sandboxes.runtime.name}: no port .* can be reached") as caught:
            await sandboxes.runtime.address(unit, 8000)
        assert caught.value.fault is RuntimeFault.REFUSED
    finally:
        await sandboxes.close()


async def test_task_runs_from_submission_to_its_diff(
    kind: str, open_reaching: Open, image: Contents | None, herd: Broker, tmp_path: Path
) -> None:
    """With the real broker, spawner and worker the edit is published as a diff, and nothing is left.

    The image lacks the worker here, so that it is uploaded.
    """
    if image is not None:
        image.worker = None

    async def opened(_settings: Settings) -> Sequence[Runtime]:
        return [await open_reaching("whole")]

    settings = herd.settings(Principal.SPAWNER, home=tmp_path, runtime=kind, check_interval=0.2, max_attempts=1)
    async with compose(settings, runtimes=opened).running(), herd.bus(Principal.CLIENT, project="p1") as bus:
        person = ProjectUser(bus, eventually, tmp_path)
        await person.listen()
        task = await person.submit(["/bin/sh", "-c", "printf 'one\\ntwo\\n' > made.txt; echo done"])
        view = await person.ended(task)
        assert (view.state, view.error) == ("completed", None)
        assert view.sandbox is not None
        await person.receives(view.sandbox, "sandbox.terminated")
        await _nothing_left(open_reaching)
    edited = person.event_data(view.sandbox, "agent.file_edited")
    assert edited["file_path"] == "made.txt"
    assert "+two" in edited["full_diff"]
    person.check_sequences()


async def _nothing_left(open_reaching: Open) -> None:
    """Wait until nothing is left: ended sandboxes are removed a moment later."""
    runtime = await open_reaching("whole")

    async def gone() -> bool:
        return await runtime.find_all() == []

    try:
        await eventually(gone)
    finally:
        await runtime.close()
