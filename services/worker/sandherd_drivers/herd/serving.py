"""The protocol's side of an agent: JSON-RPC in lines. A call may take hours, and what comes meanwhile is answered."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock, Thread
from typing import IO, Any, Final

from sandherd_drivers.herd.offered import TOOLS

_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_NO_METHOD: Final = -32601
_WRONG: Final = -32602

Json = dict[str, Any]
Cut = Callable[[], None]
Call = Callable[[str, Mapping[str, Any], Callable[[Cut], None]], tuple[str, bool]]


class Server:
    """Answers one agent until the end of its input."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes], call: Call) -> None:
        self._requests, self._answers, self._call = requests, answers, call
        self._lock = Lock()
        self._cuts: dict[Any, Cut] = {}

    def run(self) -> None:
        """Read requests to the end. What is no request is passed over."""
        for line in self._requests:
            with suppress(ValueError, AttributeError, TypeError):
                self._heed(json.loads(line))

    def _heed(self, message: Json) -> None:
        method, params = message.get("method"), message.get("params") or {}
        if method == "notifications/cancelled":
            self._cut(params.get("requestId"))
        elif method == "tools/call" and "id" in message:
            Thread(target=self._tool, args=(message["id"], params), daemon=True).start()
        elif method is not None and "id" in message:
            self._answer(message["id"], **_known(str(method), params))

    def _tool(self, name: Any, params: Json) -> None:
        tool, arguments = params.get("name"), params.get("arguments") or {}
        if tool not in {known["name"] for known in TOOLS} or not isinstance(arguments, dict):
            self._answer(name, error={"code": _WRONG, "message": "there is no such tool"})
            return
        text, failed = self._call(str(tool), arguments, lambda cut: self._begun(name, cut))
        with self._lock:
            self._cuts.pop(name, None)
        self._answer(name, result={"content": [{"type": "text", "text": text}], "isError": failed})

    def _begun(self, name: Any, cut: Cut) -> None:
        with self._lock:
            self._cuts[name] = cut

    def _cut(self, name: Any) -> None:
        """The agent does not wait for this any more."""
        with self._lock:
            cut = self._cuts.pop(name, None)
        if cut is not None:
            with suppress(OSError):
                cut()

    def _answer(self, name: Any, **said: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", "id": name, **said}).encode() + b"\n"
        with self._lock, suppress(OSError, ValueError):
            self._answers.write(line)
            self._answers.flush()


def _known(method: str, params: Json) -> Json:
    """The answer to everything but a call."""
    if method == "initialize":
        wanted = params.get("protocolVersion")
        version = wanted if wanted in _VERSIONS else _VERSIONS[-1]
        about = {"name": "sandherd", "version": "1"}
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
    if method == "tools/list":
        return {"result": {"tools": list(TOOLS)}}
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": _NO_METHOD, "message": f"{method[:80]} is not known here"}}
