"""The entry points of our own runtimes. Each imports its vendor's library only when the runtime is opened."""

from collections.abc import Awaitable, Callable

from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault
from spawner.runtimes.plugin import RuntimeContext


async def open_process(context: RuntimeContext) -> Runtime:
    """Open the runtime of sandboxes on this host."""
    from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime

    return await open_runtime(ProcessRuntimeOptions.of(context.settings, context.worker, starts=context.starts))


async def open_docker(context: RuntimeContext) -> Runtime:
    """Open the runtime of containers of a Docker Engine."""
    from spawner.runtimes.docker.factory import open_docker

    return await open_docker(context.settings, context.herd, starts=context.starts)


async def open_daytona(context: RuntimeContext) -> Runtime:
    """Open the runtime of Daytona's sandboxes. Raises `RuntimeFailedError` if the SDK is not installed."""

    async def import_and_open() -> Runtime:
        from spawner.runtimes.daytona.factory import open_daytona

        return await open_daytona(context.settings, context.herd)

    return await _open_with_extra("daytona", import_and_open)


async def open_kubernetes(context: RuntimeContext) -> Runtime:
    """Open the runtime of a cluster's pods. Raises `RuntimeFailedError` if the Kubernetes client is not installed."""

    async def import_and_open() -> Runtime:
        from spawner.runtimes.kubernetes.factory import open_kubernetes

        return await open_kubernetes(context.settings, context.herd)

    return await _open_with_extra("kubernetes", import_and_open)


async def open_remote(context: RuntimeContext) -> Runtime:
    """Open the runtime of OpenHands' Runtime API."""
    from spawner.runtimes.remote.factory import open_remote

    return await open_remote(context.settings, context.herd)


async def _open_with_extra(name: str, import_and_open: Callable[[], Awaitable[Runtime]]) -> Runtime:
    """Open a runtime whose library is an extra of the spawner's distribution."""
    try:
        return await import_and_open()
    except ModuleNotFoundError as error:
        message = f"runtime {name} needs {error.name}: install the spawner as sandherd-spawner[{name}]"
        raise RuntimeFailedError(RuntimeFault.REFUSED, message) from error
