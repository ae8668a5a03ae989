"""Opens the runtimes that the settings name: our own and those of plugins. They are found by their entry points.

If one of our own can't be opened, none is opened, and the error contains the remedy. A plugin that can't be used does
not prevent the spawner's start. It is replaced by an `UnavailableRuntime`, which users see in `sandherd runtimes`.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from sandherd.bus.identity.material import SpawnerKeys
from sandherd.plugins import RUNTIMES, Plugin, PluginError, installed, unknown
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes import user_namespace
from spawner.runtimes.contract import Capabilities, Runtime, RuntimeFailedError, RuntimeFault
from spawner.runtimes.factory import WORKER, ProcessRuntimeOptions
from spawner.runtimes.layout import Layout
from spawner.runtimes.plugin import RuntimeContext
from spawner.runtimes.unavailable import UnavailableRuntime

_OPEN_TIMEOUT_SECONDS: Final = 60.0
"""How long a plugin may take to open its runtime."""
_METHODS: Final = tuple(name for name, member in vars(Runtime).items() if callable(member) and name[0] != "_")
"""The names of the methods that a runtime must have."""
_log: Final = logs.get("runtimes")


async def open_runtimes(
    settings: Settings,
    worker: tuple[str, ...] = WORKER,
    *,
    starts: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Sequence[Runtime]:
    """Open all runtimes, or none. `starts`: whether sandboxes will be started. Raises `RuntimeFailedError`."""
    names, plugins, herd = sorted(settings.runtimes_used), installed(RUNTIMES), herd_id(settings)
    if missing := unknown(names, plugins):
        raise RuntimeFailedError(RuntimeFault.REFUSED, missing)
    async with AsyncExitStack() as stack:
        opened = []
        for name in names:
            context = RuntimeContext(
                name=name, settings=settings, herd=herd, worker=worker, environ=environ, starts=starts
            )
            plugin = plugins[name]
            runtime = await (_open(plugin, context) if plugin.is_builtin else _open_plugin(plugin, context))
            stack.push_async_callback(runtime.close)
            opened.append(runtime)
        stack.pop_all()
        return opened


def enter_namespace(settings: Settings) -> None:
    """Give this process its user's subordinate uids, if runtime `process` can use them.

    To be called while the process has one thread.
    """
    if "process" in settings.runtimes_used and settings.isolation != "none":
        options = ProcessRuntimeOptions.of(settings)
        user_namespace.enter(Layout(options.root, options.quarantine))


def herd_id(settings: Settings) -> str:
    """The id with which this herd's objects are labelled at a provider. It is the same in all replicas.

    It is derived from the sandboxes' account, or without an identity directory from the path of the herd's home.
    """
    if settings.identity_dir is None:
        return _digest(str(settings.home.resolve()))
    return _digest(str(SpawnerKeys.read(settings.identity_dir).account["sub"]))


def origins() -> dict[str, str]:
    """The distribution of each installed runtime that is a plugin, by the runtime's name."""
    return {name: plugin.origin for name, plugin in installed(RUNTIMES).items() if not plugin.is_builtin}


async def _open(plugin: Plugin, context: RuntimeContext) -> Runtime:
    """Open the runtime of an entry point. Raises `PluginError`, and the errors of the entry point's function."""
    opening = plugin.load()
    if not callable(opening):
        raise PluginError(f"{plugin.title}: expected a function that opens it, found {type(opening).__name__}")
    runtime = await opening(context)
    problem = _mismatch(runtime, plugin.name)
    if problem:
        raise PluginError(f"{plugin.title}: {problem}")
    return runtime  # type: ignore[no-any-return]  # `_mismatch` has checked it


async def _open_plugin(plugin: Plugin, context: RuntimeContext) -> Runtime:
    """A plugin's runtime. If the plugin can't be used, it is a runtime that refuses everything, with the reason."""
    try:
        async with asyncio.timeout(_OPEN_TIMEOUT_SECONDS):
            return await _open(plugin, context)
    except PluginError as error:
        reason = str(error)
    except TimeoutError:
        reason = f"{plugin.title}: not open within {_OPEN_TIMEOUT_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001  # third-party code; the other runtimes have to work even if it raises
        reason = f"{plugin.title}: {error if isinstance(error, RuntimeFailedError) else repr(error)}"
    _log.error("runtime plugin unusable", runtime=plugin.name, reason=reason)
    return UnavailableRuntime(plugin.name, reason)


def _mismatch(runtime: Any, name: str) -> str | None:
    """Why this object is not a runtime with this name, or None."""
    missing = [method for method in _METHODS if not callable(getattr(runtime, method, None))]
    if missing or not isinstance(getattr(runtime, "capabilities", None), Capabilities):
        lacks = ", ".join(missing) or "capabilities"
        return f"it opened a {type(runtime).__name__}, which is not a runtime: it lacks {lacks}"
    return None if runtime.name == name else f"its runtime has the name {runtime.name!r}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
