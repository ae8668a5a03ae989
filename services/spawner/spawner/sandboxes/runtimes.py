"""Asking runtimes, as the one that leads: never without its lease, and never for an answer that may not come."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault, Seen
from spawner.sandboxes.leading import HeldLease
from spawner.sandboxes.record import SandboxRecord

AnswerT = TypeVar("AnswerT")


async def answered(call: Awaitable[AnswerT], seconds: float, what: str) -> AnswerT:
    """The answer. Raises `RuntimeFailedError` (`unavailable`) if it does not come: it may be done all the same."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{what}: no answer within {seconds:g} s") from error


@dataclass(frozen=True)
class Runtimes:
    """The runtimes there are. `timeout` is how long one is waited for, in seconds."""

    by_name: Mapping[str, Runtime]
    lease: HeldLease
    timeout: float

    def of(self, sandbox: SandboxRecord) -> Runtime:
        """The runtime of a sandbox. Raises `RuntimeFailedError` (`refused`)."""
        runtime = self.by_name.get(sandbox.runtime)
        if runtime is None:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"there is no runtime {sandbox.runtime} here any more")
        return runtime

    async def look(self, sandbox: SandboxRecord) -> Seen | None:
        """What is there of it; nothing, if its runtime is gone."""
        if sandbox.runtime not in self.by_name:
            return None
        return await self.ask(sandbox, lambda runtime: runtime.look(sandbox.alias))

    async def ask(
        self, sandbox: SandboxRecord, call: Callable[[Runtime], Awaitable[AnswerT]], longer: float = 0.0
    ) -> AnswerT:
        """Ask the runtime of a sandbox; `longer` is what it may take by itself.

        Raises `RuntimeFailedError`, and `LeaseLostError` when it is another's turn to ask.
        """
        runtime = self.of(sandbox)
        self.lease.check()
        return await answered(call(runtime), self.timeout + longer, f"runtime {runtime.name}")
