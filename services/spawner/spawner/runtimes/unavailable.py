"""A configured runtime whose plugin can't be used. It refuses every call, and the other runtimes work.

Its sandboxes do not count as lost. Their state is unknown until the plugin works again.
"""

# ruff: noqa: ARG002  # each method has the signature of the contract, and refuses every call

from collections.abc import Callable, Collection
from typing import Never

from spawner.runtimes.commands import Address, Command, CommandResult, File
from spawner.runtimes.contract import (
    NOT_ENFORCED,
    Capabilities,
    Isolation,
    ObservedSandbox,
    RuntimeFailedError,
    RuntimeFault,
    SandboxPlan,
    WarmPlan,
)


class UnavailableRuntime:
    """A `Runtime` that can't be used. `reason` has the plugin, its distribution and the problem.

    Calls raise `RuntimeFailedError`: with `REFUSED` for new requests, with `UNAVAILABLE` about existing sandboxes.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        self.capabilities = Capabilities(
            isolation=Isolation.NONE,
            memory=NOT_ENFORCED,
            processes=NOT_ENFORCED,
            gaps=(f"it can't be used: {reason}",),
            unusable=reason,
        )

    def _refuse(self) -> Never:
        raise RuntimeFailedError(RuntimeFault.REFUSED, self.reason)

    def _fail(self) -> Never:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, self.reason)

    def on_exit(self, notify: Callable[[str], None]) -> None:
        """Do nothing, because no end of a sandbox is known."""

    async def prepare(self, plan: WarmPlan) -> str | None:  # the contract's signature, here and below
        """Raise `RuntimeFailedError` (`REFUSED`)."""
        self._refuse()

    async def create(self, plan: SandboxPlan) -> None:
        """Raise `RuntimeFailedError` (`REFUSED`)."""
        self._refuse()

    async def recover(self, plan: SandboxPlan) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def pause(self, unit: str) -> None:
        """Raise `RuntimeFailedError` (`REFUSED`)."""
        self._refuse()

    async def resume(self, unit: str) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def stop(self, unit: str, grace: float) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def release(self, unit: str) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def observe(self, unit: str) -> ObservedSandbox | None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def find_all(self) -> list[ObservedSandbox]:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def remove(self, unit: str) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def run(self, unit: str, command: Command) -> CommandResult:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def write_files(self, unit: str, files: Collection[File]) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def address(self, unit: str, port: int) -> Address:
        """Raise `RuntimeFailedError` (`REFUSED`)."""
        self._refuse()

    async def quarantine(self, unit: str) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def list_quarantined(self) -> list[str]:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def unquarantine(self, unit: str) -> None:
        """Raise `RuntimeFailedError` (`UNAVAILABLE`)."""
        self._fail()

    async def close(self) -> None:
        """Do nothing, because nothing is open."""
