"""The toolbox daemon of Daytona, for a sandbox of the double: it runs commands there, and reads and writes files.

Usage: toolbox.py SOCKET. Each connection has one request and one response, both JSON after their length. It imports
only the standard library: a sandbox has nothing else.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

SHELL = shutil.which("bash") or "/bin/sh"
HOME = os.environ["HOME"]
sessions: dict[str, dict[str, dict[str, Any]]] = {}
watching: set[asyncio.Task[None]] = set()


class RefusedError(Exception):
    """A refused request: a status, a code and a text, as the daemon writes them."""


async def execute(requested: dict[str, Any]) -> dict[str, Any]:
    process = await begin(requested["command"], requested.get("cwd"), requested.get("envs"))
    try:
        async with asyncio.timeout(requested.get("timeout") or 360):
            reply, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise RefusedError(408, "PROCESS_EXECUTION_TIMEOUT", "command execution timeout") from None
    return {"exitCode": ended(process.returncode), "result": reply.decode(errors="replace")}


async def begin(command: str, folder: str | None, given: dict[str, str] | None) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(SHELL, "-c", command),
            cwd=folder or HOME,
            env={**os.environ, **(given or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise RefusedError(400, "INVALID_WORKING_DIRECTORY", str(error)) from None


def ended(code: int | None) -> int:
    return 128 - code if code is not None and code < 0 else code or 0


async def make_session(requested: dict[str, Any]) -> dict[str, Any]:
    if requested["session"] in sessions:
        raise RefusedError(409, "SESSION_EXISTS", "session already exists")
    sessions[requested["session"]] = {}
    return {}


async def in_session(requested: dict[str, Any]) -> dict[str, Any]:
    commands = known(requested["session"])
    process = await begin(requested["command"], None, None)
    number = f"cmd-{len(commands) + 1}"
    commands[number] = {"id": number, "command": requested["command"]}
    watch = asyncio.create_task(watched(process, commands[number]))
    watching.add(watch)
    watch.add_done_callback(watching.discard)
    if not requested["run_async"]:
        await watch
    return {"cmdId": number, **{name: found for name, found in commands[number].items() if name == "exitCode"}}


async def watched(process: asyncio.subprocess.Process, command: dict[str, Any]) -> None:
    await process.communicate()
    command["exitCode"] = ended(process.returncode)


async def show_session(requested: dict[str, Any]) -> dict[str, Any]:
    return {"sessionId": requested["session"], "commands": list(known(requested["session"]).values())}


def known(session: str) -> dict[str, dict[str, Any]]:
    if session not in sessions:
        raise RefusedError(404, "SESSION_NOT_FOUND", "session not found")
    return sessions[session]


async def write(requested: dict[str, Any]) -> dict[str, Any]:
    path = Path(requested["path"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(requested["content"]))
    except PermissionError:
        raise RefusedError(403, "FILE_ACCESS_DENIED", f"permission denied: {path}") from None
    return {}


async def read(requested: dict[str, Any]) -> dict[str, Any]:
    path = Path(requested["path"])
    if not path.exists():
        raise RefusedError(404, "FILE_NOT_FOUND", f"file not found: {path}")
    if path.is_dir():
        raise RefusedError(400, "FILE_READ_FAILED", f"path points to a directory: {path}")
    return {"content": base64.b64encode(path.read_bytes()).decode()}


REQUESTS = {
    "execute": execute,
    "make_session": make_session,
    "in_session": in_session,
    "show_session": show_session,
    "write": write,
    "read": read,
}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        requested = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big")))
        try:
            reply: dict[str, Any] = {"answer": await REQUESTS[requested["ask"]](requested)}
        except RefusedError as error:
            reply = {"refused": list(error.args)}
        packed = json.dumps(reply).encode()
        writer.write(len(packed).to_bytes(8, "big") + packed)
        await writer.drain()
    writer.close()


async def main() -> None:
    Path(sys.argv[1]).unlink(missing_ok=True)
    server = await asyncio.start_unix_server(answer, sys.argv[1])
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
