"""What the network forwarder of a sandbox costs: throughput, connections and answers beside plain loopback, and memory.

In one sandbox a client talks to a server on the host, which is declared; the same client outside talks to the same
server. Both take turns. The memory is the proportional set size of the forwarder while it holds no other connection.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.specs import Limits
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.network import Networks
from spawner.runtimes.opening import Options, open_runtime
from spawner.runtimes.process import ProcessRuntime

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


@dataclass(frozen=True)
class Cost:
    """Of the forwarder, and of plain loopback: MB per second, and milliseconds."""

    throughput: tuple[float, float]
    connect: tuple[float, float]
    answer: tuple[float, float]
    start: tuple[float, float]
    """Until the worker runs: with a network of its own, and in the host's."""
    memory_kib: int


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


async def measure() -> Cost:
    """All of it, in sandboxes of its own."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-network-") as folder:
        ours = await _runtime(Path(folder, "own"), Networks(endpoints=frozenset({f"127.0.0.1:{port}"})))
        shared = await _runtime(Path(folder, "shared"), Networks(mode="host"))
        try:
            start = [(await _start(ours, f"sbx-{turn}"), await _start(shared, f"sbx-{turn}")) for turn in range(5)]
            turns = [(await _inside(ours, port), await _outside(port)) for _ in range(2)]
            memory = _forwarder_kib(ours)
        finally:
            for runtime in (ours, shared):
                for seen in await runtime.find_all():
                    await runtime.remove(seen.unit)
                await runtime.close()
            server.close()
    return Cost(
        throughput=_both(turns, "load", lambda seconds: _BYTES / seconds / 1e6),
        connect=_both(turns, "connect", lambda seconds: seconds * 1000),
        answer=_both(turns, "answer", lambda seconds: seconds * 1000),
        start=(statistics.median(own for own, _ in start) * 1000, statistics.median(host for _, host in start) * 1000),
        memory_kib=memory,
    )


async def figures() -> dict[str, dict[str, Any]]:
    """The same as `make bench` has it; the ratio is ours to plain loopback's."""
    cost = await measure()
    return {
        "network.throughput": _figure(cost.throughput, "MB/s"),
        "network.connect": _figure(cost.connect, "ms"),
        "network.answer": _figure(cost.answer, "ms"),
        "network.start": _figure(cost.start, "ms"),
        "network.forwarder": _figure((cost.memory_kib / 1024, 0), "MiB"),
    }


def _figure(measured: tuple[float, float], unit: str) -> dict[str, Any]:
    ours, baseline = measured
    ratio = round(ours / baseline, 3) if baseline else None
    return {"value": round(ours, 3), "unit": unit, "baseline": round(baseline, 3), "ratio": ratio}


def _both(turns: list[tuple[dict[str, float], dict[str, float]]], name: str, of: Any) -> tuple[float, float]:
    ours, plain = (statistics.median(of(turn[which][name]) for turn in turns) for which in (0, 1))
    return ours, plain


async def _runtime(folder: Path, networks: Networks) -> ProcessRuntime:
    code = "import pathlib, signal; pathlib.Path('up').touch(); signal.pause()"
    worker = (sys.executable, "-P", "-c", code)
    return await open_runtime(
        Options(
            root=folder / "sandboxes", aside=folder / "kept", isolation="bubblewrap", worker=worker, networks=networks
        )
    )


async def _start(runtime: ProcessRuntime, unit: str) -> float:
    begun = time.perf_counter()
    await runtime.create(_plan(unit))
    up = runtime.layout.place(unit).work / "up"
    while not up.exists():  # another program
        await asyncio.sleep(0.001)
    return time.perf_counter() - begun


def _plan(unit: str) -> SandboxPlan:
    return SandboxPlan(
        project="p1", sandbox=unit, unit=unit, task="task-1", attempt=1, fence=1,
        spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"])), limits=Limits(), joiner="none",
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
    for pid in runtime.ending.members(runtime.layout.place("sbx-0")):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"python" in words[0] and any(word.endswith(b"forwarder.py") for word in words):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    raise ProcessLookupError("the sandbox has no forwarder")


if __name__ == "__main__":
    print(asyncio.run(measure()))
