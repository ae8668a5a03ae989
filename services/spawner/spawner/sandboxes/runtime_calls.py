"""Calls runtimes: only while holding the lease, and always with a timeout."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from sandherd.telemetry import logs
from spawner.runtimes.contract import ObservedSandbox, Runtime, RuntimeFailedError, RuntimeFault
from spawner.sandboxes.fenced_writes import LeaseState
from spawner.sandboxes.sandbox_record import SandboxRecord

AnswerT = TypeVar("AnswerT")
_DISRUPTION_SECONDS: Final = 2.0
"""The timeout of `disruption`, which delays the handling of an event."""
_log: Final = logs.get("runtime.calls")


async def call_with_timeout(call: Awaitable[AnswerT], seconds: float, what: str) -> AnswerT:
    """The result. Raises `RuntimeFailedError` (`unavailable`) on timeout: the call may still have been executed."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{what}: no response within {seconds:g} s") from error


async def disruption(runtimes: Mapping[str, Runtime], sandbox: SandboxRecord) -> str:
    """Why the runtime ends a sandbox without our request; empty if it does not, or if that is not known."""
    runtime = runtimes.get(sandbox.runtime)
    if runtime is None:
        return ""
    observing = runtime.observe(sandbox.runtime_unit)
    try:
        seen = await call_with_timeout(observing, _DISRUPTION_SECONDS, f"runtime {runtime.name}")
    except (RuntimeFailedError, OSError) as error:
        _log.info("exit reason of a stopped worker unknown", sandbox=sandbox.sandbox, error=str(error))
        return ""
    return seen.disruption if seen else ""


@dataclass(frozen=True)
class RuntimeCaller:
    """Calls to all runtimes. `timeout` is in seconds, for each call."""

    by_name: Mapping[str, Runtime]
    lease: LeaseState
    timeout: float

    def of(self, sandbox: SandboxRecord) -> Runtime:
        """The runtime of a sandbox. Raises `RuntimeFailedError` (`refused`)."""
        runtime = self.by_name.get(sandbox.runtime)
        if runtime is None:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime {sandbox.runtime} no longer exists here")
        return runtime

    async def observe(self, sandbox: SandboxRecord) -> ObservedSandbox | None:
        """The observed state of a sandbox; None if the sandbox does not exist, or its runtime no longer exists."""
        if sandbox.runtime not in self.by_name:
            return None
        return await self.call(sandbox, lambda runtime: runtime.observe(sandbox.runtime_unit))

    async def call(
        self, sandbox: SandboxRecord, action: Callable[[Runtime], Awaitable[AnswerT]], longer: float = 0.0
    ) -> AnswerT:
        """Call the runtime of a sandbox; `longer` is added to the timeout for the action itself.

        Raises `RuntimeFailedError`, and `LeaseLostError` if the lease is lost.
        """
        runtime = self.of(sandbox)
        self.lease.check()
        return await call_with_timeout(action(runtime), self.timeout + longer, f"runtime {runtime.name}")
