"""The cost of a sandbox's network forwarder: throughput, connections and responses beside plain loopback, and memory.

A client in a sandbox uses a server on the host, to which it has declared access; the same client outside uses the same
server. Both take turns. The memory is the proportional set size of the forwarder while it has no other connection.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from spawner.runtimes.network import Networks
from spawner.runtimes.process import ProcessRuntime
from tests.bench.recorder import Recorder

_STARTS: Final = 3
_BYTES: Final = 256 * 1024 * 1024
_CLIENT: Final = f"""
import json, socket, sys, time
at = ("127.0.0.1", int(sys.argv[1]))
def timed(act, count):
    took = []
    for _ in range(count):
        begun = time.perf_counter(); act(); took.append(time.perf_counter() - begun)
    return sorted(took)[count // 2]
def load():
    with socket.create_connection(at) as one:
        one.sendall(b"L"); size = 0
        while data := one.recv(1 << 20): size += len(data)
        assert size == {_BYTES}
def connect():
    with socket.create_connection(at) as one: one.sendall(b"E"); one.recv(1)
echo = socket.create_connection(at); echo.sendall(b"E"); echo.recv(1)
echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def answer(): echo.sendall(b"E"); echo.recv(1)
print(json.dumps(dict(load=timed(load, 3), connect=timed(connect, 100), answer=timed(answer, 1000))))
"""


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    block = bytes(1 << 20)
    while kind := await reader.read(1):
        if kind == b"L":
            for _ in range(_BYTES >> 20):
                writer.write(block)
                await writer.drain()
            break
        writer.write(kind)
    writer.close()


async def measure(recorder: Recorder) -> None:
    """Measure all figures, each in its own sandboxes."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-network-") as folder:
        ours = await _runtime(Path(folder, "own"), Networks(endpoints=frozenset({f"127.0.0.1:{port}"})))
        shared = await _runtime(Path(folder, "shared"), Networks(mode="host"))
        try:
            for run in recorder.each("network.start"):
                await _measure_start(recorder, ours, shared)
                recorder.begin("network.throughput", run)
                await _measure_traffic(recorder, ours, port)
                recorder.add("network.forwarder", _forwarder_kib(ours) / 1024)
                await _remove_all(ours, shared)
        finally:
            await _remove_all(ours, shared)
            await asyncio.gather(ours.close(), shared.close())
            server.close()


async def _measure_start(recorder: Recorder, ours: ProcessRuntime, shared: ProcessRuntime) -> None:
    """Measure the start of the worker with its own network and in the host's. `sbx-0` remains for other figures."""
    times = [(await _start(ours, f"sbx-{turn}"), await _start(shared, f"sbx-{turn}")) for turn in range(_STARTS)]
    own, host = (statistics.median(one[which] for one in times) * 1000 for which in (0, 1))
    recorder.add("network.start", own, host)


async def _measure_traffic(recorder: Recorder, ours: ProcessRuntime, port: int) -> None:
    inside, outside = await _inside(ours, port), await _outside(port)
    recorder.add("network.throughput", *(_BYTES / seconds["load"] / 1e6 for seconds in (inside, outside)))
    for name in ("connect", "answer"):
        recorder.add(f"network.{name}", inside[name] * 1000, outside[name] * 1000)


async def _remove_all(*runtimes: ProcessRuntime) -> None:
    for runtime in runtimes:
        for seen in await runtime.find_all():
            await runtime.remove(seen.unit)


async def _runtime(folder: Path, networks: Networks) -> ProcessRuntime:
    code = "import pathlib, signal; pathlib.Path('up').touch(); signal.pause()"
    worker = (sys.executable, "-P", "-c", code)
    return await open_runtime(
        ProcessRuntimeOptions(
            root=folder / "sandboxes",
            quarantine=folder / "kept",
            isolation="bubblewrap",
            worker=worker,
            networks=networks,
        )
    )


async def _start(runtime: ProcessRuntime, unit: str) -> float:
    begun = time.perf_counter()
    await runtime.create(_plan(unit))
    up = runtime.layout.directory(unit).work / "up"
    while not up.exists():  # another program
        await asyncio.sleep(0.001)
    return time.perf_counter() - begun


def _plan(unit: str) -> SandboxPlan:
    return SandboxPlan(
        project="p1", sandbox=unit, unit=unit, task="task-1", attempt=1, fence=1,
        spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"])), limits=SandboxLimits(), joiner="none",
        nats_url="nats://127.0.0.1:1", heartbeat_interval=30, stop_grace=5,
    )  # fmt: skip


async def _inside(runtime: ProcessRuntime, port: int) -> dict[str, float]:
    ran = await runtime.run("sbx-0", Command(argv=[sys.executable, "-I", "-c", _CLIENT, str(port)], seconds=120))
    assert ran.code == 0, ran
    found: dict[str, float] = json.loads(ran.out)
    return found


async def _outside(port: int) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", _CLIENT, str(port), stdout=asyncio.subprocess.PIPE
    )
    found: dict[str, float] = json.loads((await process.communicate())[0])
    return found


def _forwarder_kib(runtime: ProcessRuntime) -> int:
    for pid in runtime.termination.members(runtime.layout.directory("sbx-0")):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"python" in words[0] and any(b"forwarder" in word for word in words):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    raise ProcessLookupError("the sandbox has no forwarder")
