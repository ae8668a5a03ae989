"""The configuration of MCP servers for an SDK, and the socket behind the herd's own server."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from sandherd.contracts.harnesses import McpToolOptions
from sandherd_worker.herd.tool_socket import ToolSocket
from sandherd_worker.herd.tools import HerdTools, ToolUser

SOCKET: Final = "herd.sock"
_MODULE: Final = "sandherd_drivers.herd"


class McpConfig:
    """The herd's tools for one agent. Creating it raises `OSError`."""

    def __init__(self, tools: HerdTools, folder: Path) -> None:
        self._tools = tools
        self._listening = ToolSocket(folder / SOCKET)

    async def open(self, agent: ToolUser) -> None:
        """Allow this agent to use the tools from now on."""
        await self._listening.open(partial(self._tools.use, agent))

    async def close(self) -> None:
        """Close the socket: the agent has ended."""
        await self._listening.close()

    def server(self, python: Path, drivers: Path) -> dict[str, Any]:
        """The MCP server of the herd's tools, in SDK format. Its credential is only in that server's variables."""
        return {
            "command": str(python),
            "args": ["-B", "-P", "-m", _MODULE],
            "env": {
                "PYTHONPATH": str(drivers),
                "SANDHERD_HERD_SOCKET": str(self._listening.path),
                "SANDHERD_HERD_TOKEN": self._listening.token,
            },
        }


def added(options: McpToolOptions, env: Mapping[str, str]) -> dict[str, Any]:
    """The servers that a task adds, with their variables. Pure."""
    return {
        name: {
            "command": server.command,
            "args": list(server.args),
            "env": {**server.env, **{variable: env[variable] for variable in sorted(server.secret_env)}},
        }
        for name, server in options.mcp_servers.items()
    }
