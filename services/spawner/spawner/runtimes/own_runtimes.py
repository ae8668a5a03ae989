"""The entry points of our own runtimes. Each imports its vendor's library only when it is used."""

from collections.abc import Awaitable, Callable

from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault
from spawner.runtimes.plugin import RuntimeContext


async def open_process(context: RuntimeContext) -> Runtime:
    """Sandboxes on this host."""
    from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime

    return await open_runtime(ProcessRuntimeOptions.of(context.settings, context.worker, starts=context.starts))


async def open_docker(context: RuntimeContext) -> Runtime:
    """Containers of a Docker Engine."""
    from spawner.runtimes.docker.factory import open_docker

    return await open_docker(context.settings, context.herd, starts=context.starts)


async def open_daytona(context: RuntimeContext) -> Runtime:
    """Daytona sandboxes. Raises `RuntimeFailedError` if its SDK is not installed."""

    async def opened() -> Runtime:
        from spawner.runtimes.daytona.factory import open_daytona

        return await open_daytona(context.settings, context.herd)

    return await _with_extra("daytona", opened)


async def open_kubernetes(context: RuntimeContext) -> Runtime:
    """Pods of a cluster. Raises `RuntimeFailedError` if the Kubernetes client is not installed."""

    async def opened() -> Runtime:
        from spawner.runtimes.kubernetes.factory import open_kubernetes

        return await open_kubernetes(context.settings, context.herd)

    return await _with_extra("kubernetes", opened)


async def open_remote(context: RuntimeContext) -> Runtime:
    """Runtimes of OpenHands' Runtime API."""
    from spawner.runtimes.remote.factory import open_remote

    return await open_remote(context.settings, context.herd)


async def _with_extra(name: str, opening: Callable[[], Awaitable[Runtime]]) -> Runtime:
    try:
        return await opening()
    except ModuleNotFoundError as error:
        message = f"runtime {name} needs {error.name}: install the spawner as sandherd-spawner[{name}]"
        raise RuntimeFailedError(RuntimeFault.REFUSED, message) from error
