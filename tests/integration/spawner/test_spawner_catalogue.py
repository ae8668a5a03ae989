"""The catalogue of a herd: runtimes, profiles, limits and harnesses."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from sandherd.contracts.requests import ListRuntimes, Profile
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.runtimes.contract import Capabilities, Isolation, Runtime
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.played import access_handlers

P = Principal
MIB = 1024 * 1024


async def test_catalogue_lists_what_can_be_requested(herd: Broker) -> None:
    """The catalogue has the runtimes with capabilities and limits, the profiles, caps and defaults of this herd."""
    can = Capabilities(isolation=Isolation.BUBBLEWRAP, memory="cgroup", processes="rlimit", can_pause=True, ports=True)
    runtime = cast("Runtime", SimpleNamespace(name="process", capabilities=can))
    settings: dict[str, Any] = {
        "profiles": {"small": Profile(limits=SandboxLimits(memory_mb=128), warm=2)},
        "runtime_limits": {"process": 4},
        "caps": SandboxLimits(memory_mb=4096, cpu_seconds=60),
        "max_file_mb": 7,
    }
    async with access_handlers(herd, {"process": runtime}, **settings), herd.bus(P.CLIENT, project="p1") as client:
        found = await client.ask(ListRuntimes(), "p1")
    view = found.runtimes[0]
    assert (view.runtime, view.default, view.isolation, view.limit) == ("process", True, "bubblewrap", 4)
    assert (view.can_pause, view.memory, view.processes, view.ports) == (True, "cgroup", "rlimit", True)
    assert found.profiles == settings["profiles"]
    assert (found.caps, found.defaults.memory_mb, found.defaults.cpu_seconds) == (settings["caps"], 2048, 60)
    assert (found.harnesses, found.max_file_bytes, found.max_attempts) == (
        ["command", "claude", "openhands", "acp"],
        7 * MIB,
        20,
    )


async def test_process_runtime_states_whether_it_limits_the_disk(
    herd: Broker, open_process: Callable[..., Awaitable[ProcessRuntime]]
) -> None:
    """The process runtime states whether it limits the disk, which clients, `sandherd runtimes` and `doctor` show."""
    runtime = cast("Runtime", await open_process(""))
    async with access_handlers(herd, {"process": runtime}), herd.bus(P.CLIENT, project="p1") as client:
        found = await client.ask(ListRuntimes(), "p1")
    assert [view.disk for view in found.runtimes] == ["none"]
