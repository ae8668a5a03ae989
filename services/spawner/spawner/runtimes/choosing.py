"""Opening the runtimes that the settings name. One that can't be had here is said, with what would let it be had."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from sandherd.bus.identity.material import SpawnerKeys
from sandherd.settings import Settings
from spawner.runtimes import user_namespace
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import Layout
from spawner.runtimes.opening import WORKER, Options, open_runtime


async def open_runtimes(
    settings: Settings, worker: tuple[str, ...] = WORKER, *, starts: bool = True
) -> Sequence[Runtime]:
    """All of them, or none; unless it `starts` sandboxes, for finding and ending them. Raises `RuntimeFailedError`."""
    async with AsyncExitStack() as stack:
        opened = []
        for name in sorted(settings.runtimes_used):
            here = name == "process"
            runtime = await (_process(settings, worker, starts=starts) if here else _elsewhere(name, settings))
            stack.push_async_callback(runtime.close)
            opened.append(runtime)
        stack.pop_all()
        return opened


def enter_namespace(settings: Settings) -> None:
    """Before anything else in this process: give it its user's subordinate uids, if runtime `process` can use them."""
    if "process" in settings.runtimes_used and settings.isolation != "none":
        options = Options.of(settings)
        user_namespace.enter(Layout(options.root, options.aside))


def herd(settings: Settings) -> str:
    """What marks everything of this herd at a provider, for every replica alike: its sandboxes' account."""
    if settings.identity_dir is None:
        return _digest(str(settings.home.resolve()))
    return _digest(str(SpawnerKeys.read(settings.identity_dir).account["sub"]))


async def _elsewhere(name: str, settings: Settings) -> Runtime:
    opening = _OPEN.get(name)
    if opening is None:
        known = ", ".join(sorted({"process", *_OPEN}))
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"there is no runtime {name!r}; there is: {known}")
    try:
        return await opening(settings, herd(settings))
    except ModuleNotFoundError as error:
        told = f"runtime {name} needs {error.name}: install the spawner as sandherd-spawner[{name}]"
        raise RuntimeFailedError(RuntimeFault.REFUSED, told) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def _process(settings: Settings, worker: tuple[str, ...], *, starts: bool) -> Runtime:
    return await open_runtime(Options.of(settings, worker, starts=starts))


async def _docker(settings: Settings, name: str) -> Runtime:
    from spawner.runtimes.docker.opening import open_docker

    return await open_docker(settings, name)


async def _daytona(settings: Settings, name: str) -> Runtime:
    from spawner.runtimes.daytona.opening import open_daytona

    return await open_daytona(settings, name)


async def _kubernetes(settings: Settings, name: str) -> Runtime:
    from spawner.runtimes.kubernetes.opening import open_kubernetes

    return await open_kubernetes(settings, name)


async def _remote(settings: Settings, name: str) -> Runtime:
    from spawner.runtimes.remote.opening import open_remote

    return await open_remote(settings, name)


_OPEN: Final[Mapping[str, Callable[[Settings, str], Awaitable[Runtime]]]] = {
    "daytona": _daytona,
    "docker": _docker,
    "kubernetes": _kubernetes,
    "remote": _remote,
}
"""Each loads its vendor's library only where it is wanted; not everybody has them all."""
