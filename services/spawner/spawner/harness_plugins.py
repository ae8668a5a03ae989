"""The kinds of agent that tasks may use: our own, and those of plugins, which are imported when they are first used."""

import asyncio
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import ContractError
from sandherd.contracts.harness_kinds import OWN_KINDS, HarnessKind
from sandherd.contracts.harnesses import McpToolOptions, PluginHarness
from sandherd.contracts.specs import TaskSpec, check_mcp_servers
from sandherd.plugins import HARNESSES, Plugin, PluginError, choice, installed, load_harness
from spawner.spec_resolution import Refusal

_FIELD = "spec.harness"


class HarnessPlugins:
    """The installed kinds of agent, as they were when the spawner started."""

    def __init__(self, plugins: Mapping[str, Plugin] | None = None) -> None:
        """`plugins` are by default those that are installed here."""
        self._plugins = installed(HARNESSES) if plugins is None else plugins
        self._loaded: dict[str, HarnessKind] = dict(OWN_KINDS)

    @property
    def names(self) -> list[str]:
        """The kinds that tasks may name: our own in their order, then those of plugins."""
        others = [name for name, plugin in self._plugins.items() if name not in OWN_KINDS and plugin.problem is None]
        return [*OWN_KINDS, *others]

    async def refusal(self, spec: TaskSpec) -> Refusal | None:
        """Why this task can't use the harness that it names, or None. Our own kinds were validated with the task."""
        if not isinstance(spec.harness, PluginHarness):
            return None
        kind, plugin = spec.harness.kind, self._plugins.get(spec.harness.kind)
        if plugin is None:
            return Refusal(f"there is no harness {kind!r} here; there is: {choice(self._plugins)}", f"{_FIELD}.kind")
        try:
            return _invalid(await self._load(plugin), spec)
        except PluginError as error:
            return Refusal(str(error), f"{_FIELD}.kind")

    async def problems(self) -> dict[str, str | None]:
        """The problem of each plugin that can't be used, by name. Imports all plugins."""
        found: dict[str, str | None] = {}
        for name, plugin in self._plugins.items():
            try:
                await self._load(plugin)
            except PluginError as error:
                found[f"harness {name}"] = str(error)
        return found

    async def _load(self, plugin: Plugin) -> HarnessKind:
        """The kind of a plugin, imported in a thread, because an import may take seconds. Raises `PluginError`."""
        if plugin.name not in self._loaded:
            self._loaded[plugin.name] = await asyncio.to_thread(load_harness, plugin)
        return self._loaded[plugin.name]


def _invalid(kind: HarnessKind, spec: TaskSpec) -> Refusal | None:
    """Why the plugin's model refuses the harness of this task, or None. Contains no value, which may be a secret."""
    try:
        options: BaseModel = kind.options.model_validate(spec.harness.model_dump())
    except ValidationError as error:
        problem = ContractError.from_validation(error).problem
        return Refusal(problem.message, f"{_FIELD}.{problem.field}" if problem.field else _FIELD)
    except Exception as error:  # noqa: BLE001  # a plugin's model may raise anything; the task is refused
        return Refusal(f"{kind.name}: its model raised {type(error).__name__}", _FIELD)
    if isinstance(options, McpToolOptions):
        try:
            check_mcp_servers(options, spec)
        except ValueError as error:
            return Refusal(str(error), f"{_FIELD}.mcp_servers")
    return None
