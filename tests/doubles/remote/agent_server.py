"""A small stand-in for the OpenHands agent server, for boxes of the double: it starts in a twentieth of the time.

It has the routes that the adapter and the SDK's own client use, and passes the same tests as the real one. It runs
alone, with only the standard library.
"""

import argparse
import json
import os
import signal
import subprocess
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from uuid import UUID, uuid4

_SECRET = ("SESSION_API_KEY", "OH_SESSION_API_KEYS_0")
_CHUNK = 64 * 1024
EVENTS: dict[str, list[dict[str, Any]]] = {}


class Refused(Exception):  # noqa: N818  # a response, no error of ours
    """An error response: a status and a text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # the base class has it
        """Log nothing."""

    def do_GET(self) -> None:  # the base class has it
        """Respond to GET."""
        self._answer("GET")

    def do_POST(self) -> None:  # the base class has it
        """Respond to POST."""
        self._answer("POST")

    def _answer(self, method: str) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            answer = self._route(method, url.path)(query, body, self.headers)
        except Refused as refused:
            self._send(refused.status, json.dumps({"detail": refused.detail}).encode(), "application/json")
            return
        if isinstance(answer, Path):
            self._send_file(answer)
        else:
            self._send(200, json.dumps(answer).encode(), "application/json")

    def _route(self, method: str, path: str) -> Any:
        if path not in _OPEN and self.headers.get("X-Session-API-Key") not in _keys():
            raise Refused(401, "Unauthorized")
        if (method, path) not in _ROUTES:
            raise Refused(404, "Not Found")
        return _ROUTES[method, path]

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        size = path.stat().st_size
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Disposition", f"attachment; filename*=utf-8''{quote(path.name)}")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        with path.open("rb") as file:
            while size > 0 and (part := file.read(min(size, _CHUNK))):
                self.wfile.write(part)
                size -= len(part)


def _keys() -> set[str]:
    return {os.environ[name] for name in _SECRET if name in os.environ}


def _health(*_: Any) -> dict[str, Any]:
    return {"status": "ok"}


def _begun(requested: dict[str, Any]) -> tuple[dict[str, Any], "subprocess.Popen[bytes]"]:
    command = {
        "id": str(uuid4()), "timestamp": datetime.now(UTC).isoformat(), "command": requested["command"],
        "cwd": requested.get("cwd"), "timeout": requested.get("timeout", 300), "kind": "BashCommand",
    }  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if name not in _SECRET}
    process = subprocess.Popen(
        command["command"], shell=True, cwd=command["cwd"], env=environ, start_new_session=True,  # its task
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return command, process


def _ended(command: dict[str, Any], process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=command["timeout"])
        code = process.returncode
    except subprocess.TimeoutExpired as late:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(1)
                break
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        out, err, code = late.stdout or b"", late.stderr or b"", -1
    output = {
        "id": str(uuid4()), "timestamp": datetime.now(UTC).isoformat(), "command_id": command["id"], "order": 0,
        "exit_code": code, "stdout": out.decode(errors="replace") or None,
        "stderr": err.decode(errors="replace") or None, "kind": "BashOutput",
    }  # fmt: skip
    EVENTS.setdefault(command["id"], []).append(output)
    return output


def _execute(_query: Any, body: bytes, _headers: Any) -> dict[str, Any]:
    command, process = _begun(json.loads(body))
    return _ended(command, process)


def _start(_query: Any, body: bytes, _headers: Any) -> dict[str, Any]:
    command, process = _begun(json.loads(body))
    threading.Thread(target=_ended, args=(command, process), daemon=True).start()
    return command


def _search(query: dict[str, str], _body: bytes, _headers: Any) -> dict[str, Any]:
    wanted = str(UUID(query["command_id__eq"]))
    after = int(query.get("order__gt", -1))
    return {"items": [event for event in EVENTS.get(wanted, []) if event["order"] > after], "next_page_id": None}


def _upload(query: dict[str, str], body: bytes, headers: Any) -> dict[str, Any]:
    path = _absolute(query)
    boundary = headers.get_param("boundary", header="Content-Type")
    if not boundary:
        raise Refused(422, "file: Field required")
    part = body.split(f"--{boundary}".encode(), 2)[1]
    content = part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except IsADirectoryError as error:
        raise Refused(400, "Path is a directory") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise Refused(400, "A parent of the path is not a directory") from error
    except OSError as error:
        raise Refused(500, f"Failed to upload file: {error}") from error
    return {"success": True, "file_size": len(content)}


def _download(query: dict[str, str], _body: bytes, _headers: Any) -> Path:
    path = _absolute(query)
    if not path.exists():
        raise Refused(404, "File not found")
    if not path.is_file():
        raise Refused(400, "Path is not a file")
    return path


def _absolute(query: dict[str, str]) -> Path:
    path = Path(query.get("path", ""))
    if not path.is_absolute():
        raise Refused(400, "Path must be absolute")
    return path


_OPEN = frozenset({"/health", "/alive", "/ready"})
_ROUTES: dict[tuple[str, str], Any] = {
    ("GET", "/health"): _health,
    ("GET", "/alive"): _health,
    ("GET", "/ready"): _health,
    ("POST", "/api/bash/execute_bash_command"): _execute,
    ("POST", "/api/bash/start_bash_command"): _start,
    ("GET", "/api/bash/bash_events/search"): _search,
    ("POST", "/api/file/upload"): _upload,
    ("GET", "/api/file/download"): _download,
}


class Server(ThreadingHTTPServer):
    """The server; each connection has a thread."""

    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    requested = argparse.ArgumentParser()
    requested.add_argument("--host")
    requested.add_argument("--port", type=int)
    given = requested.parse_args()
    Server((given.host, given.port), Handler).serve_forever()
