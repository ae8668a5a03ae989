"""An ACP agent that does what its prompt says, line by line, on the library's agent side.

`say TEXT`, `think TEXT`, `plan A|B`, `cost DOLLARS`, `tokens IN OUT`, `prompts` (says what it was prompted with),
`env NAME`, `fs` (whether it may ask for files), `servers` (those that it was told of).
`tool ID KIND INPUT`, `more ID JSON`, `done ID TEXT`, `failed ID TEXT`; `may ID TITLE` asks for leave, `may! ID TITLE`
offers nothing that is for once; `read PATH LINE LIMIT`, `write PATH TEXT`.
`sh ID COMMAND` runs it for a call that has begun; the cancel kills it.
`wait` for the cancel, `end REASON`, `error CODE TEXT`; `print TEXT` writes to standard output, `complain TEXT` to
standard error; `die`, `exit N`, `hold` (dies, but something it started holds its pipes), `mute` (closes its output).

Its arguments change what it is: `auth`, `old`, `plain` (loads nothing), `deaf`, `angry` (answers a cancelled prompt
with an error), `stubborn` (heeds the third cancel), `stone` (heeds none), `fails` (ends at once), `forks`, `model`.
With SCRIPTED_SESSIONS it keeps what it was prompted with in that directory, and a session that it loads knows it.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, run_agent, text_block
from acp.helpers import (
    plan_entry,
    start_tool_call,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    AgentCapabilities,
    Cost,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    SessionCapabilities,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionForkCapabilities,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
)

SESSION = "sess-1"
ONCE = [("yes", "allow_once"), ("always", "allow_always"), ("no", "reject_once"), ("never", "reject_always")]
FOR_EVER = [("always", "allow_always")]
ARE = set(sys.argv[1:])
KEPT = os.environ.get("SCRIPTED_SESSIONS")


class ScriptedAgent:
    """The library finds these methods by their names."""

    def __init__(self) -> None:
        self._cancelled = asyncio.Event()
        self._cancels = 0
        self._prompts: list[list[str]] = []
        self._usage: Usage | None = None
        self._client: Any = None
        self._session = SESSION
        self._offered: Any = None
        self._servers: Any = None

    def on_connect(self, client: Any) -> None:
        self._client = client

    # --- what a client asks

    async def initialize(self, protocol_version: int, client_capabilities: Any = None, **_: Any) -> InitializeResponse:
        if "fails" in ARE:
            os._exit(7)
        if "deaf" in ARE:
            print("deaf", file=sys.stderr, flush=True)
            await asyncio.Event().wait()
        self._offered = client_capabilities
        forks = SessionCapabilities(fork=SessionForkCapabilities()) if "forks" in ARE else SessionCapabilities()
        return InitializeResponse(
            protocol_version=0 if "old" in ARE else PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(load_session="plain" not in ARE, session_capabilities=forks),
            agent_info=Implementation(name="scripted", version="1.0"),
        )

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        self._servers = [server.model_dump(exclude_none=True) for server in mcp_servers]
        if "auth" in ARE:
            raise RequestError.auth_required({"details": "set SCRIPTED_KEY"})
        model = SessionConfigOptionSelect(
            id="model",
            name="Model",
            category="model",
            type="select",
            current_value="scripted-9",
            options=[SessionConfigSelectOption(name="Nine", value="scripted-9")],
        )
        return NewSessionResponse(session_id=SESSION, config_options=[model] if "model" in ARE else None)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        if session_id == "lost":
            raise RequestError.resource_not_found(session_id)
        self._session = session_id
        self._recall(session_id)
        await self._update(update_user_message_text("what was asked before"))
        await self._update(update_agent_message_text("what was said before"))
        await self._update(start_tool_call("old", "an old call", kind="read"))
        await self._update(UsageUpdate(session_update="usage_update", used=1, size=2, cost=_dollars(0.5)))
        return LoadSessionResponse()

    async def fork_session(self, session_id: str, cwd: str, **_: Any) -> ForkSessionResponse:
        self._session = f"{session_id}-fork"
        self._recall(session_id)
        return ForkSessionResponse(session_id=self._session)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        texts = [block.text for block in prompt]
        self._prompts.append(texts)
        self._keep()
        self._cancelled.clear()
        for line in "\n".join(texts).splitlines():
            word, _space, rest = line.partition(" ")
            if (reason := await self._do(word, rest)) is not None:
                return PromptResponse.model_construct(stop_reason=reason, usage=self._usage)
        return PromptResponse(stop_reason="end_turn", usage=self._usage)

    async def cancel(self, session_id: str, **_: Any) -> None:
        self._cancels += 1
        if "stone" not in ARE and ("stubborn" not in ARE or self._cancels > 2):
            self._cancelled.set()

    def _keep(self) -> None:
        if KEPT is not None:
            Path(KEPT, f"{self._session}.json").write_text(json.dumps(self._prompts))

    def _recall(self, session_id: str) -> None:
        if KEPT is not None:
            self._prompts = json.loads(Path(KEPT, f"{session_id}.json").read_text())

    # --- what it does

    async def _do(self, word: str, rest: str) -> Any:
        """Returns the reason to stop, if there is one."""
        if word in {"wait", "end", "error"}:
            return await self._end(word, rest)
        if word == "sh":
            return await self._run(*rest.split(" ", 1))
        if word in {"die", "exit", "hold", "mute", "print", "complain"}:
            await self._misbehave(word, rest)
        elif word in {"tool", "more", "done", "failed", "may", "may!"}:
            await self._use(word, *rest.split(" ", 1))
        elif word in {"read", "write"}:
            await self._say(await self._touch(word, rest))
        elif word in {"say", "prompts", "env", "fs", "servers"}:
            await self._say(self._text(word, rest))
        else:
            await self._tell(word, rest)
        return None

    async def _end(self, word: str, rest: str) -> str:
        if word == "end":
            return rest
        if word == "error":
            code, _, text = rest.partition(" ")
            raise RequestError(int(code), text)
        await self._say("waiting")
        await self._cancelled.wait()
        if "angry" in ARE:
            raise RequestError.internal_error({"details": "aborted"})
        return "cancelled"

    def _text(self, word: str, rest: str) -> str:
        match word:
            case "prompts":
                return json.dumps(self._prompts)
            case "servers":
                return json.dumps(self._servers)
            case "env":
                return os.environ.get(rest, "unset")
            case "fs":
                return f"{self._offered.fs.read_text_file} {self._offered.fs.write_text_file}"
        return rest

    async def _tell(self, word: str, rest: str) -> None:
        match word:
            case "think":
                await self._update(update_agent_thought_text(rest))
            case "plan":
                await self._update(update_plan([plan_entry(part) for part in rest.split("|")]))
            case "cost":
                cost = _dollars(float(rest))
                await self._update(UsageUpdate(session_update="usage_update", used=1, size=2, cost=cost))
            case "tokens":
                given, taken = map(int, rest.split())
                self._usage = Usage(total_tokens=given + taken, input_tokens=given, output_tokens=taken)

    async def _use(self, word: str, id: str, rest: str = "") -> None:
        match word:
            case "tool":
                kind, _, given = rest.partition(" ")
                raw = json.loads(given) if given else None
                await self._update(start_tool_call(id, f"Call {id}", kind=kind, status="pending", raw_input=raw))
            case "more":
                await self._update(update_tool_call(id, **json.loads(rest)))
            case "done" | "failed":
                status = "completed" if word == "done" else "failed"
                content = [tool_content(text_block(rest))]
                await self._update(update_tool_call(id, status=status, content=content))
            case _:
                await self._ask(id, rest, ONCE if word == "may" else FOR_EVER)

    async def _run(self, id: str, command: str) -> str | None:
        """Returns the reason to stop, if it was stopped."""
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
        options = [PermissionOption(option_id=option, name=option, kind=kind) for option, kind in offered]
        call = ToolCallUpdate(tool_call_id=id, title=title, kind="execute", raw_input={"command": title})
        answer = await self._client.request_permission(self._session, call, options)
        await self._say(f"[{getattr(answer.outcome, 'option_id', answer.outcome.outcome)}]")

    async def _touch(self, word: str, rest: str) -> str:
        path, _, more = rest.partition(" ")
        try:
            if word == "write":
                await self._client.write_text_file(self._session, path, more)
                return "written"
            line, limit = (int(number) for number in more.split()) if more else (None, None)
            return str((await self._client.read_text_file(self._session, path, line, limit)).content)
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

    async def _say(self, text: str) -> None:
        await self._update(update_agent_message_text(text))

    async def _update(self, update: Any) -> None:
        await self._client.session_update(self._session, update)


def _dollars(amount: float) -> Cost:
    return Cost(amount=amount, currency="USD")


if __name__ == "__main__":
    asyncio.run(run_agent(ScriptedAgent(), use_unstable_protocol=True))
