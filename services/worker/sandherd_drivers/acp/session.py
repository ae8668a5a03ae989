"""One session with an agent, through the protocol's own library."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any, Final, NoReturn

from acp import PROTOCOL_VERSION, RequestError, text_block
from acp.client.connection import ClientSideConnection
from acp.meta import AGENT_METHODS
from acp.schema import ClientCapabilities, EnvVariable, FileSystemCapabilities, Implementation, McpServerStdio

from sandherd_drivers.acp.client import WorkClient
from sandherd_drivers.acp.content_blocks import Json
from sandherd_drivers.acp.outcomes import AcpOutcome, outcome_of_error_response, outcome_of_exit, outcome_of_stop_reason
from sandherd_drivers.acp.program import AgentProgram
from sandherd_drivers.commands import Resume

_FINAL_MESSAGES_SECONDS: Final = 1.0
"""How long to wait for messages that an agent sent before it ended, in seconds."""
_MAX_NAME_LENGTH: Final = 256
_LOAD_METHOD: Final = "session/load"
_REMEDIES: Final = {True: "continue it without `fork`, or start again", False: "start again without `resume`"}
"""What a user can do if the agent can't fork (True) or resume (False) a session."""
_CLIENT_CAPABILITIES: Final = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True))


class UnansweredError(Exception):
    """The agent has not responded as required."""

    def __init__(self, outcome: AcpOutcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


@dataclass(frozen=True)
class SessionInfo:
    """What an agent reported about itself and its session."""

    session_id: str | None
    """None if it is not a valid id."""
    model: str | None
    version: str | None


class AcpSession:
    """A session with an agent: opened once, then each turn is one prompt."""

    def __init__(self, program: AgentProgram, client: WorkClient, work_dir: Path, servers: Mapping[str, Json]) -> None:
        self._program, self._client, self._work_dir = program, client, str(work_dir)
        self._connection = ClientSideConnection(client, program.lines)
        self._mcp_servers = [_mcp_server(name, server) for name, server in servers.items()]
        self._prompt_sent = asyncio.Event()
        self._on_taken = client.on_received
        program.lines.on_written = self._on_written
        self.id = ""

    async def open(self, resume: Resume | None, timeout: float) -> SessionInfo:
        """Initialize the agent and create or resume a session. Raises `UnansweredError`."""
        try:
            async with asyncio.timeout(timeout):
                agent = await self._initialize()
                session = await (self._resume_session(agent, resume) if resume else self._create_session())
        except TimeoutError:
            text = f"the agent did not begin a session within {timeout:.0f} s"
            raise UnansweredError(AcpOutcome(None, "start", text)) from None
        self.id = getattr(session, "session_id", None) or (resume.session_id if resume else "")
        info = agent.agent_info
        session_id = self.id if 0 < len(self.id) <= _MAX_NAME_LENGTH else None
        return SessionInfo(
            session_id, _session_model(session), f"{info.name} {info.version}"[:_MAX_NAME_LENGTH] if info else None
        )

    async def prompt(self, texts: Sequence[str], on_taken: Callable[[], None]) -> tuple[AcpOutcome, Json | None]:
        """Run one turn; returns its outcome and the tokens it used. Raises `UnansweredError`.

        `on_taken` is called for each message from the agent after the prompt was sent.
        """
        self._on_taken = on_taken
        request = self._connection.prompt(self.id, [text_block(text) for text in texts])
        try:
            response = await self._await_response("the prompt", request)
        finally:
            self._prompt_sent.clear()
        on_taken()
        outcome = outcome_of_stop_reason(response.stop_reason, interrupted=self._client.stopping)
        return outcome, response.usage.model_dump(by_alias=True) if response.usage else None

    async def cancel(self) -> None:
        """Wait until the prompt of the agent's turn is sent, then request the end of the turn."""
        await self._prompt_sent.wait()
        try:
            await self._connection.cancel(self.id)
        except ConnectionError:
            return  # The agent has ended, and its turn with it.

    async def close(self) -> None:
        """End the agent and close the connection."""
        await self._program.end()
        await self._connection.close()

    async def _initialize(self) -> Any:
        client_info = Implementation(name="sandherd", version="1")
        request = self._connection.initialize(
            PROTOCOL_VERSION, client_capabilities=_CLIENT_CAPABILITIES, client_info=client_info
        )
        agent = await self._await_response("initialize", request)
        if agent.protocol_version != PROTOCOL_VERSION:
            text = f"the agent supports protocol version {agent.protocol_version}, not {PROTOCOL_VERSION}"
            raise UnansweredError(AcpOutcome(None, "start", text))
        return agent

    async def _create_session(self) -> Any:
        return await self._await_response(
            "session/new", self._connection.new_session(self._work_dir, mcp_servers=self._mcp_servers)
        )

    async def _resume_session(self, agent: Any, resume: Resume) -> Any:
        """Resume a session with the request that this agent offers, if any. Raises `UnansweredError`."""
        request = self._resume_request(agent, resume)
        if request is None:
            action = "fork a session" if resume.fork else "resume an earlier session"
            raise UnansweredError(AcpOutcome(None, "start", f"this agent can't {action}; {_REMEDIES[resume.fork]}"))
        # Only this request makes the agent repeat the updates of the session.
        self._client.replaying = request[0] == _LOAD_METHOD
        try:
            return await self._await_response(*request)
        except UnansweredError as error:
            text = f"{error.outcome.error}; if it has no such session here, start again without `resume`"
            raise UnansweredError(replace(error.outcome, error=text)) from None
        finally:
            self._client.replaying = False

    def _resume_request(self, agent: Any, resume: Resume) -> tuple[str, Coroutine[Any, Any, Any]] | None:
        """The request with which this agent resumes or forks a session; None if it offers none."""
        session_id, connection, servers = resume.session_id, self._connection, self._mcp_servers
        if resume.fork:
            if _has_capability(agent, "agent_capabilities", "session_capabilities", "fork"):
                return "session/fork", connection.fork_session(session_id, self._work_dir, mcp_servers=servers)
        elif _has_capability(agent, "agent_capabilities", "load_session"):
            return _LOAD_METHOD, connection.load_session(self._work_dir, session_id, mcp_servers=servers)
        elif _has_capability(agent, "agent_capabilities", "session_capabilities", "resume"):
            return "session/resume", connection.resume_session(session_id, self._work_dir, mcp_servers=servers)
        return None

    async def _await_response(self, request_name: str, request: Coroutine[Any, Any, Any]) -> Any:
        """The agent's response. Raises `UnansweredError`, also if the program ends while others keep its pipes open."""
        response = asyncio.create_task(request)
        try:
            await asyncio.wait({response, self._program.exit}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({response}, timeout=_FINAL_MESSAGES_SECONDS if self._program.exit.done() else None)
            return await response if response.done() else self._raise_disconnected()
        except RequestError as error:
            raise UnansweredError(outcome_of_error_response(request_name, error.code, str(error), error.data)) from None
        except ConnectionError:
            raise UnansweredError(outcome_of_exit(await self._program.wait_for_exit())) from None
        except ValueError as error:
            text = f"the agent's response to {request_name} is invalid: {str(error)[:200]}"
            raise UnansweredError(AcpOutcome(None, "internal", text)) from None
        finally:
            response.cancel()

    def _raise_disconnected(self) -> NoReturn:
        raise ConnectionError

    def _on_written(self, message: Json) -> None:
        if message.get("method") == AGENT_METHODS["session_prompt"]:
            self._client.on_received = self._on_taken
            self._prompt_sent.set()


def _has_capability(agent: Any, *names: str) -> bool:
    """Whether an agent offers this capability: its value is neither missing nor False."""
    for name in names:
        agent = getattr(agent, name, None)
    return agent is not None and agent is not False


def _session_model(session: Any) -> str | None:
    """The session's model, if the agent reports it as an option of the session."""
    for option in getattr(session, "config_options", None) or ():
        if option.category == "model":
            return str(option.current_value)[:_MAX_NAME_LENGTH]
    return None


def _mcp_server(name: str, server: Json) -> McpServerStdio:
    """An MCP server, in the protocol's format."""
    env = [EnvVariable(name=variable, value=value) for variable, value in server["env"].items()]
    return McpServerStdio(
        name=name, command=which(server["command"]) or server["command"], args=server["args"], env=env
    )
