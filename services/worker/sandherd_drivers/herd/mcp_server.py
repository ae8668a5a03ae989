"""The MCP server for an agent: JSON-RPC lines. A call may take hours; other requests are handled meanwhile."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import IO, Any, Final

_PROTOCOL_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602

Json = dict[str, Any]
Cancel = Callable[[], None]
Call = Callable[[str, Mapping[str, Any], Callable[[Cancel], None]], tuple[str, bool]]
"""Calls a tool with its arguments and passes a `Cancel` on; returns the text for the agent, and whether it failed."""


class McpStdioServer:
    """Serves one agent until the end of its input."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes], call: Call) -> None:
        self._requests, self._replies, self._call = requests, replies, call
        self._lock = Lock()
        self._cancels: dict[Any, Cancel] = {}

    def run(self) -> None:
        """Read requests until the end. Invalid lines are ignored."""
        for line in self._requests:
            with suppress(ValueError, AttributeError, TypeError):
                self._handle(json.loads(line))

    def _handle(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params") or {}
        if method == "notifications/cancelled":
            self._cancel_call(params.get("requestId"))
        elif method == "tools/call" and "id" in message:
            Thread(target=self._call_tool, args=(message["id"], params), daemon=True).start()
        elif method is not None and "id" in message:
            self._reply(message["id"], **_response_to(str(method), params))

    def _call_tool(self, request_id: Any, params: Json) -> None:
        tool, arguments = params.get("name"), params.get("arguments") or {}
        if tool not in {known["name"] for known in TOOLS} or not isinstance(arguments, dict):
            self._reply(request_id, error={"code": _INVALID_PARAMS, "message": "there is no such tool"})
            return
        text, failed = self._call(str(tool), arguments, lambda cancel: self._register_cancel(request_id, cancel))
        with self._lock:
            self._cancels.pop(request_id, None)
        self._reply(request_id, result={"content": [{"type": "text", "text": text}], "isError": failed})

    def _register_cancel(self, request_id: Any, cancel: Cancel) -> None:
        with self._lock:
            self._cancels[request_id] = cancel

    def _cancel_call(self, request_id: Any) -> None:
        """The agent no longer waits for this call."""
        with self._lock:
            cancel = self._cancels.pop(request_id, None)
        if cancel is not None:
            with suppress(OSError):
                cancel()

    def _reply(self, request_id: Any, **response: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", "id": request_id, **response}).encode() + b"\n"
        with self._lock, suppress(OSError, ValueError):
            self._replies.write(line)
            self._replies.flush()


def _response_to(method: str, params: Json) -> Json:
    """The response to any request but a tool call."""
    if method == "initialize":
        requested = params.get("protocolVersion")
        version = requested if requested in _PROTOCOL_VERSIONS else _PROTOCOL_VERSIONS[-1]
        server_info = {"name": "sandherd", "version": "1"}
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server_info}}
    if method == "tools/list":
        return {"result": {"tools": list(TOOLS)}}
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": _METHOD_NOT_FOUND, "message": f"{method[:80]} is not supported"}}


def _tool(name: str, description: str, required: tuple[str, ...] = (), **arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS: Final = (
    _tool(
        "send_message",
        "Send a message to another agent of this project. It receives the message while it works, and may reply in "
        "the same way.",
        ("recipient", "content"),
        recipient="The name of its sandbox, as returned by list_peers.",
        content="The message: at most 16,000 characters.",
    ),
    _tool("list_peers", "List the other agents that work in this project now: their sandboxes, and their tasks."),
    _tool(
        "ask_human",
        "Ask a user something that only a user can decide, and wait for the answer. It may take long, and there may "
        "be no answer at all.",
        ("question",),
        question="The question, with everything needed to answer it: at most 4,000 characters.",
    ),
)
