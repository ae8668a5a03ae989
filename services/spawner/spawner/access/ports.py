"""Clients' connections to ports in sandboxes: forwarded to the worker, which connects to its own loopback only."""

from collections.abc import Mapping
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import PortData, PortRead, PortWrite, PortWritten, WorkerPortRead, WorkerPortWrite
from sandherd.service.service import IncomingRequest
from spawner.access.worker_requests import WorkerRequests
from spawner.runtimes.contract import Isolation, Runtime, RuntimeFailedError
from spawner.runtimes.loopback import LoopbackOwner
from spawner.sandboxes.sandbox_record import SandboxRecord

_HOST_WARNING: Final = "a client could reach the host there"


class Ports:
    """Handles the requests `port_write` and `port_read`."""

    def __init__(self, workers: WorkerRequests, runtimes: Mapping[str, Runtime]) -> None:
        self._workers = workers
        self._runtimes = runtimes

    async def write(self, incoming: IncomingRequest[PortWrite]) -> PortWritten:
        """Open a connection, or write to it. Raises `ContractError`, also for a port that is not the sandbox's own."""
        request = incoming.request
        if request.offset == 0 and not request.close:
            self._check_port(await self._workers.open_record(incoming.project, request.sandbox), request.port)
        return await self._workers.forward(incoming, WorkerPortWrite, request.wait_seconds)

    async def read(self, incoming: IncomingRequest[PortRead]) -> PortData:
        """The next bytes of a connection. Raises `ContractError`."""
        return await self._workers.forward(incoming, WorkerPortRead, incoming.request.wait_seconds)

    def _check_port(self, record: SandboxRecord, port: int) -> None:
        runtime = self._runtimes.get(record.runtime)
        if runtime is None:
            raise ContractError(Code.UNAVAILABLE, f"runtime {record.runtime} no longer exists here")
        try:
            why = port_refusal(runtime, record.runtime_unit, port)
        except RuntimeFailedError as error:
            raise ContractError(Code.UNAVAILABLE, str(error), field="sandbox", remedy="repeat the request") from error
        if why:
            raise ContractError(
                Code.REFUSED,
                f"port {port} of {record.sandbox} is not forwarded: {why}, and {_HOST_WARNING}",
                field="port",
                remedy="forward a port of a program in a sandbox that has a network of its own",
            )


def port_refusal(runtime: Runtime, unit: str, port: int) -> str:
    """Why a port on a sandbox's loopback address may belong to its host; empty if it belongs to the sandbox."""
    if runtime.capabilities.isolation is Isolation.NONE:
        return f"runtime {runtime.name} does not separate sandboxes from its host"
    return runtime.port_refusal(unit, port) if isinstance(runtime, LoopbackOwner) else ""
