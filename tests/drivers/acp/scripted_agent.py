"""An ACP agent that does what its prompt says, line by line; its messages are the protocol's, without its library.

The library takes longer to load than most tests of the driver take. `test_acp_scripted.py` holds each message against
the models of the library.

`say TEXT`, `think TEXT`, `plan A|B`, `cost DOLLARS`, `tokens IN OUT`, `prompts` (says what it was prompted with),
`env NAME`, `fs` (whether it may ask for files), `servers` (the configured ones).
`tool ID KIND INPUT`, `more ID JSON`, `done ID TEXT`, `failed ID TEXT`; `may ID TITLE` needs approval, `may! ID TITLE`
offers nothing that is for once; `read PATH LINE LIMIT`, `write PATH TEXT`.
`sh ID COMMAND` runs it for a call that has begun; the cancel kills it.
`wait` for the cancel, `end REASON`, `error CODE TEXT`; `print TEXT` writes to standard output, `complain TEXT` to
standard error; `die`, `exit N`, `hold` (ends, but something it started holds its pipes), `mute` (closes its output).

Its arguments change what it is: `auth`, `old`, `plain` (loads nothing), `deaf`, `angry` (answers a cancelled prompt
with an error), `stubborn` (heeds the third cancel), `stone` (heeds none), `fails` (ends at once), `forks`, `model`.
With SCRIPTED_SESSIONS it keeps what it was prompted with in that directory, and a session that it loads knows it.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

SESSION = "sess-1"
ONCE = [("yes", "allow_once"), ("always", "allow_always"), ("no", "reject_once"), ("never", "reject_always")]
FOR_EVER = [("always", "allow_always")]
ARE = set(sys.argv[1:])
STORED_SESSIONS = os.environ.get("SCRIPTED_SESSIONS")
LONGEST = 50 * 1024 * 1024
"""The maximum bytes of one message."""
MODEL = {
    "id": "model",
    "name": "Model",
    "category": "model",
    "type": "select",
    "currentValue": "scripted-9",
    "options": [{"name": "Nine", "value": "scripted-9"}],
}

Json = dict[str, Any]


class RequestError(Exception):
    """An error in place of a request's result, sent or received."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class Connection:
    """JSON-RPC 2.0 on standard input and output, a message in each line; each request has its own task."""

    def __init__(self, methods: dict[str, Callable[[Json], Awaitable[Json | None]]]) -> None:
        self._methods = methods
        self._numbers = count()
        self._requested: dict[int, asyncio.Future[Json]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        reader = asyncio.StreamReader(limit=LONGEST)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if "method" in message:
                task = asyncio.ensure_future(self._called(message))
                self._tasks.add(task)
                task.add_done_callback(self._done)
            elif "error" in message:
                error = message["error"]
                self._requested.pop(message["id"]).set_exception(
                    RequestError(error["code"], error["message"], error.get("data"))
                )
            else:
                self._requested.pop(message["id"]).set_result(message["result"] or {})

    async def _called(self, message: Json) -> None:
        try:
            answer: Json = {"result": await self._methods[message["method"]](message["params"])}
        except RequestError as error:
            answer = {"error": {"code": error.code, "message": str(error), "data": error.data}}
        except OSError as error:  # a session that is not stored in the expected place
            answer = {"error": {"code": -32603, "message": "Internal error", "data": {"details": str(error)}}}
        if "id" in message:
            self._write({"id": message["id"], **answer})

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            os._exit(70)  # it is itself wrong: its response need not be awaited

    async def ask(self, method: str, params: Json) -> Json:
        number = next(self._numbers)
        self._requested[number] = asyncio.get_running_loop().create_future()
        self._write({"id": number, "method": method, "params": params})
        return await self._requested[number]

    def notify(self, method: str, params: Json) -> None:
        self._write({"method": method, "params": params})

    def _write(self, message: Json) -> None:
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        sys.stdout.buffer.flush()


class ScriptedAgent:
    def __init__(self) -> None:
        self._cancelled = asyncio.Event()
        self._cancels = 0
        self._prompts: list[list[str]] = []
        self._usage: Json = {}
        self._session = SESSION
        self._offered: Json = {}
        self._servers: Any = None
        self.client = Connection(
            {
                "initialize": self._initialize,
                "session/new": self._begin_session,
                "session/load": self._load_session,
                "session/fork": self._fork_session,
                "session/prompt": self._prompt,
                "session/cancel": self._cancel,
            }
        )

    # --- what a client asks

    async def _initialize(self, params: Json) -> Json:
        if "fails" in ARE:
            os._exit(7)
        if "deaf" in ARE:
            print("deaf", file=sys.stderr, flush=True)
            await asyncio.Event().wait()
        self._offered = params["clientCapabilities"]
        return {
            "protocolVersion": 0 if "old" in ARE else 1,
            "agentCapabilities": {
                "loadSession": "plain" not in ARE,
                "sessionCapabilities": {"fork": {}} if "forks" in ARE else {},
            },
            "agentInfo": {"name": "scripted", "version": "1.0"},
        }

    async def _begin_session(self, params: Json) -> Json:
        self._servers = params["mcpServers"]
        if "auth" in ARE:
            raise RequestError(-32000, "Authentication required", {"details": "set SCRIPTED_KEY"})
        return {"sessionId": SESSION, **({"configOptions": [MODEL]} if "model" in ARE else {})}

    async def _load_session(self, params: Json) -> Json:
        if params["sessionId"] == "lost":
            raise RequestError(-32002, "Resource not found", {"uri": "lost"})
        self._session = params["sessionId"]
        self._recall(self._session)
        self._update("user_message_chunk", content=_text("what was asked before"))
        self._write_text("what was said before")
        self._update("tool_call", toolCallId="old", title="an old call", kind="read")
        self._cost(0.5)
        return {}

    async def _fork_session(self, params: Json) -> Json:
        self._session = f"{params['sessionId']}-fork"
        self._recall(params["sessionId"])
        return {"sessionId": self._session}

    async def _prompt(self, params: Json) -> Json:
        texts = [block["text"] for block in params["prompt"]]
        self._prompts.append(texts)
        self._keep()
        self._cancelled.clear()
        for line in "\n".join(texts).splitlines():
            word, _space, rest = line.partition(" ")
            if (reason := await self._do(word, rest)) is not None:
                return {"stopReason": reason, **self._usage}
        return {"stopReason": "end_turn", **self._usage}

    async def _cancel(self, _params: Json) -> None:
        self._cancels += 1
        if "stone" not in ARE and ("stubborn" not in ARE or self._cancels > 2):
            self._cancelled.set()

    def _keep(self) -> None:
        if STORED_SESSIONS is not None:
            Path(STORED_SESSIONS, f"{self._session}.json").write_text(json.dumps(self._prompts))

    def _recall(self, session_id: str) -> None:
        if STORED_SESSIONS is not None:
            self._prompts = json.loads(Path(STORED_SESSIONS, f"{session_id}.json").read_text())

    # --- what it does

    async def _do(self, word: str, rest: str) -> Any:
        """Do a line. Returns the reason to stop, if there is one."""
        if word in {"wait", "end", "error"}:
            return await self._end(word, rest)
        if word == "sh":
            return await self._run(*rest.split(" ", 1))
        if word in {"die", "exit", "hold", "mute", "print", "complain"}:
            await self._misbehave(word, rest)
        elif word in {"tool", "more", "done", "failed", "may", "may!"}:
            await self._use(word, *rest.split(" ", 1))
        elif word in {"read", "write"}:
            self._write_text(await self._touch(word, rest))
        elif word in {"say", "prompts", "env", "fs", "servers"}:
            self._write_text(self._answer(word, rest))
        else:
            self._reply_with(word, rest)
        return None

    async def _end(self, word: str, rest: str) -> str:
        if word == "end":
            return rest
        if word == "error":
            code, _, text = rest.partition(" ")
            raise RequestError(int(code), text)
        self._write_text("waiting")
        await self._cancelled.wait()
        if "angry" in ARE:
            raise RequestError(-32603, "Internal error", {"details": "aborted"})
        return "cancelled"

    def _answer(self, word: str, rest: str) -> str:
        match word:
            case "prompts":
                return json.dumps(self._prompts)
            case "servers":
                return json.dumps(self._servers)
            case "env":
                return os.environ.get(rest, "unset")
            case "fs":
                fs = self._offered.get("fs", {})
                return f"{fs.get('readTextFile', False)} {fs.get('writeTextFile', False)}"
        return rest

    def _reply_with(self, word: str, rest: str) -> None:
        match word:
            case "think":
                self._update("agent_thought_chunk", content=_text(rest))
            case "plan":
                entries = [{"content": part, "priority": "medium", "status": "pending"} for part in rest.split("|")]
                self._update("plan", entries=entries)
            case "cost":
                self._cost(float(rest))
            case "tokens":
                given, taken = map(int, rest.split())
                self._usage = {"usage": {"totalTokens": given + taken, "inputTokens": given, "outputTokens": taken}}

    async def _use(self, word: str, id: str, rest: str = "") -> None:
        match word:
            case "tool":
                kind, _, given = rest.partition(" ")
                raw = {"rawInput": json.loads(given)} if given else {}
                self._update("tool_call", toolCallId=id, title=f"Call {id}", kind=kind, status="pending", **raw)
            case "more":
                self._update("tool_call_update", toolCallId=id, **json.loads(rest))
            case "done" | "failed":
                status = "completed" if word == "done" else "failed"
                content = [{"type": "content", "content": _text(rest)}]
                self._update("tool_call_update", toolCallId=id, status=status, content=content)
            case _:
                await self._ask(id, rest, ONCE if word == "may" else FOR_EVER)

    async def _run(self, id: str, command: str) -> str | None:
        """Run a command. Returns the reason to stop, if it was stopped."""
        shell = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
        shown, cancelled = asyncio.ensure_future(shell.communicate()), asyncio.ensure_future(self._cancelled.wait())
        await asyncio.wait([shown, cancelled], return_when=asyncio.FIRST_COMPLETED)
        if not shown.done():
            os.killpg(shell.pid, signal.SIGKILL)
        text = (await shown)[0].decode()
        stopped = cancelled.done()
        cancelled.cancel()
        await self._use("failed" if stopped else "done", id, text)
        return "cancelled" if stopped else None

    async def _ask(self, id: str, title: str, offered: list[tuple[str, str]]) -> None:
        options = [{"optionId": option, "name": option, "kind": kind} for option, kind in offered]
        call = {"toolCallId": id, "title": title, "kind": "execute", "rawInput": {"command": title}}
        answer = await self._client_does("session/request_permission", toolCall=call, options=options)
        outcome = answer["outcome"]
        self._write_text(f"[{outcome.get('optionId', outcome['outcome'])}]")

    async def _touch(self, word: str, rest: str) -> str:
        path, _, more = rest.partition(" ")
        try:
            if word == "write":
                await self._client_does("fs/write_text_file", path=path, content=more)
                return "written"
            part = dict(zip(("line", "limit"), map(int, more.split()), strict=False))
            return str((await self._client_does("fs/read_text_file", path=path, **part))["content"])
        except RequestError as error:
            return f"error {error.code} {json.dumps(error.data)}"

    async def _misbehave(self, word: str, rest: str) -> None:
        match word:
            case "print":
                os.write(1, rest.encode() + b"\n")
            case "complain":
                os.write(2, rest.encode() + b"\n")
            case "exit":
                os._exit(int(rest))
            case "mute":
                os.close(1)
                await asyncio.Event().wait()
            case "hold":
                # It ends with the driver.
                await asyncio.create_subprocess_exec("tail", f"--pid={os.getppid()}", "-s0.1", "-f", "/dev/null")
                os.kill(os.getpid(), signal.SIGKILL)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)

    def _write_text(self, text: str) -> None:
        self._update("agent_message_chunk", content=_text(text))

    def _cost(self, dollars: float) -> None:
        self._update("usage_update", used=1, size=2, cost={"amount": dollars, "currency": "USD"})

    def _update(self, session_update: str, **fields: Any) -> None:
        update = {"sessionUpdate": session_update, **fields}
        self.client.notify("session/update", {"sessionId": self._session, "update": update})

    async def _client_does(self, method: str, **params: Any) -> Json:
        return await self.client.ask(method, {"sessionId": self._session, **params})


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


if __name__ == "__main__":
    asyncio.run(ScriptedAgent().client.serve())
