"""Every runtime as the spawner has it: the process runtime, and each provider of boxes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from sandherd.contracts.commands import CommandHarness, SandboxLimits, TaskSpec
from sandherd.stack.broker import Broker
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.commands import Command, CommandResult
from spawner.runtimes.contract import Runtime, SandboxPlan
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime

Open = Callable[..., Awaitable[Runtime]]


def process_runtimes(folder: Path) -> Open:
    """A function that opens the process runtime of a herd; each call opens another one."""

    async def opened(herd: str) -> Runtime:
        root = folder / herd
        return await open_runtime(
            ProcessRuntimeOptions(root=root / "sandboxes", quarantine=root / "kept", hidden=(folder,))
        )

    return opened


def box_runtimes(open_provider: Callable[[], Awaitable[Any]]) -> Open:
    """A function that opens the runtime of a provider; each call opens another one."""

    async def opened(herd: str) -> Runtime:
        return BoxRuntime(await open_provider(), herd)

    return opened


@dataclass
class Sandboxes:
    """Sandboxes of one herd at one runtime, with the real worker, which tries a broker without a spawner."""

    runtime: Runtime
    open: Open
    broker: Broker
    herd: str
    _made: set[str] = field(default_factory=set)

    def plan(self, **changed: Any) -> SandboxPlan:
        """The plan of a sandbox under a new name."""
        name = f"sbx-{uuid4().hex[:12]}"
        self._made.add(name)
        options: dict[str, Any] = {
            "project": "p1",
            "sandbox": name,
            "unit": name,
            "task": "task-1",
            "attempt": 1,
            "fence": 7,
            "spec": TaskSpec(text="do it", harness=CommandHarness(argv=["true"])),
            "limits": SandboxLimits(memory_mb=256, processes=100),
            "joiner": self.broker.minter().mint_joiner("p1", name, 600),
            "nats_url": self.broker.url,
            "heartbeat_interval": 30,
            "stop_grace": 5,
        }
        return SandboxPlan(**(options | changed))

    async def make(self) -> str:
        """Create a sandbox whose worker runs."""
        plan = self.plan()
        await self.runtime.create(plan)
        return plan.unit

    async def again(self, herd: str | None = None) -> Runtime:
        """Open the runtime as a restarted spawner does."""
        return await self.open(herd or self.herd)

    async def sh(self, unit: str, script: str, **more: Any) -> CommandResult:
        """Run a script in a sandbox."""
        return await self.runtime.run(unit, Command(argv=["/bin/sh", "-c", script], **more))

    async def close(self) -> None:
        """Remove all sandboxes."""
        for unit in self._made:
            await self.runtime.remove(unit)
        await self.runtime.close()
