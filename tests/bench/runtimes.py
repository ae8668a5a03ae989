"""How long each local runtime takes until a sandbox runs, and until a command in it has ended.

Docker: a box of our adapter, on an image that it has prepared before, beside a container of the bare image with the
same limits, volume and program, but without worker and files, made and started by the plain client; and a command by
our adapter, beside the same by the engine's exec. A box is ready when the first line that its program prints has
arrived. Process: a sandbox beside the same program as a plain process of this host, and a command in it likewise. Ours
and the baseline take turns, so that the machine's load affects both.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final
from uuid import uuid4

from aiodocker import Docker
from aiodocker.containers import DockerContainer

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.boxes.box_files import HERD, STATE
from spawner.runtimes.boxes.provider import BoxSpec, Command, File
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.docker.containers import PREFIX, ContainerOptions, config
from spawner.runtimes.docker.provider import DockerProvider
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from spawner.runtimes.process import ProcessRuntime
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.engines.docker import IMAGE

Pair = tuple[Latency, Latency]
Timed = Callable[[], Awaitable[float]]
_COUNT: Final = 8
"""How many times each is timed in a run."""
_WAITS: Final = "echo up; exec sleep 600"
_WORKER: Final = "import pathlib, signal; pathlib.Path('up').touch(); signal.pause()"
_TRUE: Final = ("/bin/sh", "-c", "true")


async def in_turns(ours: Timed, baseline: Timed, count: int) -> Pair:
    """The times of both, which take turns; the first of each warms caches and is not counted."""
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(count + 1):
        for which, measure in enumerate((ours, baseline)):
            seconds = await measure()
            if number:
                took[which].append(seconds)
    return latency_of(took[0]), latency_of(took[1])


async def timed(work: Awaitable[object]) -> float:
    """The seconds that a call takes."""
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


async def measure_docker(recorder: Recorder, host: str) -> None:
    """Measure at the engine: creating a box until it runs, and a command until its result is back."""
    docker, kind = Docker(host), ContainerOptions(IMAGE, network="none")
    engine = DockerProvider(Docker(host), kind)
    try:
        for run in recorder.each("runtime.docker.create"):
            made = await in_turns(lambda: _ours(engine, docker), lambda: _bare(engine, docker, kind), _COUNT)
            recorder.add("runtime.docker.create", *made)
            recorder.begin("runtime.docker.exec", run)
            recorder.add("runtime.docker.exec", *await _docker_exec(engine, docker, _COUNT))
    finally:
        await engine.close()
        await docker.close()


def _spec(script: str) -> BoxSpec:
    name = f"sbx-{uuid4().hex[:12]}"
    return BoxSpec(
        name=name,
        labels={HERD: "bench"},
        image=None,
        program=["/bin/sh", "-c", script],
        environment={},
        files=[File(f"{STATE}/task.json", b"{}"), File(f"{STATE}/joiner.creds", b"x" * 2000)],
        limits=SandboxLimits(memory_mb=256),
        stop_grace=1,
    )


async def _ours(engine: DockerProvider, docker: Docker) -> float:
    spec = _spec(_WAITS)

    async def made() -> None:
        await _ready(docker.containers.container((await engine.create(spec)).id))

    try:
        return await timed(made())
    finally:
        await engine.remove(spec.name)


async def _bare(engine: DockerProvider, docker: Docker, kind: ContainerOptions) -> float:
    spec = _spec(_WAITS)
    plain = {"Entrypoint": list(spec.program), "AttachStdin": False, "OpenStdin": False, "StdinOnce": False}
    options = config(spec, kind, IMAGE) | plain

    async def made() -> None:
        container = await docker.containers.create(options, name=PREFIX + spec.name)
        await container.start()
        await _ready(container)

    try:
        return await timed(made())
    finally:
        await engine.remove(spec.name)


async def _ready(container: DockerContainer) -> None:
    log_lines = container.log(stdout=True, stderr=True, follow=True)
    async with aclosing(log_lines) as lines:  # type: ignore[type-var]  # it is a generator
        async for line in lines:
            if line == "up\n":
                return
    raise RuntimeError("the program of a container has ended before it was ready")


async def _docker_exec(engine: DockerProvider, docker: Docker, count: int) -> Pair:
    box = await engine.create(_spec(_WAITS))

    async def bare() -> None:
        execution = await docker.containers.container(box.id).exec(list(_TRUE))
        async with execution.start() as stream:
            while await stream.read_out() is not None:
                pass
        await execution.inspect()

    try:
        return await in_turns(lambda: timed(engine.run(box.name, Command(argv=_TRUE))), lambda: timed(bare()), count)
    finally:
        await engine.remove(box.name)


async def measure_process(recorder: Recorder) -> None:
    """Measure the process runtime, beside plain processes."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        root = Path(directory)
        worker = (sys.executable, "-P", "-c", _WORKER)
        runtime = await open_runtime(
            ProcessRuntimeOptions(root=root / "s", quarantine=root / "k", hidden=(root,), worker=worker)
        )
        try:
            for run in recorder.each("runtime.process.create"):
                made = await in_turns(lambda: _sandbox(runtime), lambda: _plain(root, worker), _COUNT)
                recorder.add("runtime.process.create", *made)
                recorder.begin("runtime.process.exec", run)
                recorder.add("runtime.process.exec", *await _process_exec(runtime, _COUNT))
        finally:
            for seen in await runtime.find_all():
                await runtime.remove(seen.unit)
            await runtime.close()


def _plan() -> SandboxPlan:
    name = f"sbx-{uuid4().hex[:12]}"
    return SandboxPlan(
        project="bench",
        sandbox=name,
        unit=name,
        task="task-1",
        attempt=1,
        fence=1,
        spec=TaskSpec(text="nothing", harness=CommandHarness(argv=["true"])),
        limits=SandboxLimits(),
        joiner="none",
        nats_url="nats://127.0.0.1:1",
        heartbeat_interval=30,
        stop_grace=5,
    )


async def _up(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.001)  # another process: it sends no notification


async def _sandbox(runtime: ProcessRuntime) -> float:
    plan = _plan()

    async def made() -> None:
        await runtime.create(plan)
        await _up(runtime.layout.directory(plan.unit).work / "up")

    try:
        return await timed(made())
    finally:
        await runtime.remove(plan.unit)


async def _plain(root: Path, worker: tuple[str, ...]) -> float:
    folder = root / uuid4().hex
    folder.mkdir()
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*worker, cwd=folder)
    try:
        await _up(folder / "up")
        return time.perf_counter() - begun
    finally:
        process.kill()
        await process.wait()


async def _process_exec(runtime: ProcessRuntime, count: int) -> Pair:
    plan = _plan()
    await runtime.create(plan)

    async def plain() -> None:
        process = await asyncio.create_subprocess_exec(*_TRUE, stdout=asyncio.subprocess.PIPE)
        await process.communicate()

    try:
        return await in_turns(lambda: timed(runtime.run(plan.unit, Command(argv=_TRUE))), lambda: timed(plain()), count)
    finally:
        await runtime.remove(plan.unit)
