"""Offering: what is written into an SDK's list of servers, and what listens behind our own."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from sandherd.contracts.harnesses import Offering
from sandherd_worker.herd.listening import Listening
from sandherd_worker.herd.tools import Agent, HerdTools

SOCKET: Final = "herd.sock"
_MODULE: Final = "sandherd_drivers.herd"


class Herd:
    """The herd as an agent has it to hand. Making it raises `OSError`."""

    def __init__(self, tools: HerdTools, folder: Path) -> None:
        self._tools = tools
        self._listening = Listening(folder / SOCKET)

    async def open(self, agent: Agent) -> None:
        """This agent may use it from now on."""
        await self._listening.open(partial(self._tools.use, agent))

    async def close(self) -> None:
        """The agent has ended."""
        await self._listening.close()

    def server(self, python: Path, drivers: Path) -> dict[str, Any]:
        """The server of its tools, as SDKs are told of one. What lets it in is in variables, which are its own."""
        return {
            "command": str(python),
            "args": ["-B", "-P", "-m", _MODULE],
            "env": {
                "PYTHONPATH": str(drivers),
                "SANDHERD_HERD_SOCKET": str(self._listening.path),
                "SANDHERD_HERD_TOKEN": self._listening.token,
            },
        }


def added(asked: Offering, env: Mapping[str, str]) -> dict[str, Any]:
    """The servers that a task adds, with the variables that they are given. Pure."""
    return {
        name: {
            "command": server.command,
            "args": list(server.args),
            "env": {**server.env, **{variable: env[variable] for variable in sorted(server.secret_env)}},
        }
        for name, server in asked.mcp_servers.items()
    }
