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

from sandherd_drivers.acp.blocks import Json
from sandherd_drivers.acp.client import WorkClient
from sandherd_drivers.acp.outcomes import Outcome, of_exit, of_refused_request, of_stop_reason
from sandherd_drivers.acp.program import AgentProgram
from sandherd_drivers.commands import Resume

_LAST_WORDS: Final = 1.0
"""What an agent that has ended said before is still on its way."""
_LONGEST_NAME: Final = 256
_LOAD: Final = "session/load"
_REMEDIES: Final = {True: "go on with it without `fork`, or begin anew", False: "begin anew, without `resume`"}
_OFFERED: Final = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True))


class UnansweredError(Exception):
    """The agent has not answered as it should."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


@dataclass(frozen=True)
class Opened:
    """What an agent told of itself and its session."""

    session_id: str | None
    """None for one that is no name."""
    model: str | None
    version: str | None


class Session:
    """Opened once, then prompted turn by turn."""

    def __init__(self, program: AgentProgram, client: WorkClient, work_dir: Path, servers: Mapping[str, Json]) -> None:
        self._program, self._client, self._work_dir = program, client, str(work_dir)
        self._connection = ClientSideConnection(client, program.lines)
        self._servers = [_server(name, server) for name, server in servers.items()]
        self._prompted = asyncio.Event()
        self._taken = client.heard
        program.lines.written = self._written
        self.id = ""

    async def open(self, resume: Resume | None, patience: float) -> Opened:
        """Get acquainted and begin a session, or go on with one. Raises `UnansweredError`."""
        try:
            async with asyncio.timeout(patience):
                agent = await self._acquainted()
                session = await (self._resumed(agent, resume) if resume else self._begun())
        except TimeoutError:
            text = f"the agent has not begun a session within {patience:.0f} seconds"
            raise UnansweredError(Outcome(None, "start", text)) from None
        self.id = getattr(session, "session_id", None) or (resume.session_id if resume else "")
        info = agent.agent_info
        known = self.id if 0 < len(self.id) <= _LONGEST_NAME else None
        return Opened(known, _model(session), f"{info.name} {info.version}"[:_LONGEST_NAME] if info else None)

    async def prompt(self, texts: Sequence[str], taken: Callable[[], None]) -> tuple[Outcome, Json | None]:
        """One turn: its outcome, and the tokens that it took. Raises `UnansweredError`.

        `taken` is called at the first sign of the agent after it was given the texts, as often as there are signs.
        """
        self._taken = taken
        request = self._connection.prompt(self.id, [text_block(text) for text in texts])
        try:
            response = await self._answer("the prompt", request)
        finally:
            self._prompted.clear()
        taken()
        outcome = of_stop_reason(response.stop_reason, interrupted=self._client.stopping)
        return outcome, response.usage.model_dump(by_alias=True) if response.usage else None

    async def cancel(self) -> None:
        """Tell the agent to end its turn; if there is none yet, as soon as it is under way."""
        await self._prompted.wait()
        try:
            await self._connection.cancel(self.id)
        except ConnectionError:
            return  # It has ended, which ends the turn too.

    async def close(self) -> None:
        """Leave, and end the agent."""
        await self._program.end()
        await self._connection.close()

    async def _acquainted(self) -> Any:
        ourselves = Implementation(name="sandherd", version="1")
        request = self._connection.initialize(PROTOCOL_VERSION, client_capabilities=_OFFERED, client_info=ourselves)
        agent = await self._answer("initialize", request)
        if agent.protocol_version != PROTOCOL_VERSION:
            text = f"the agent speaks version {agent.protocol_version} of the protocol, not {PROTOCOL_VERSION}"
            raise UnansweredError(Outcome(None, "start", text))
        return agent

    async def _begun(self) -> Any:
        return await self._answer(
            "session/new", self._connection.new_session(self._work_dir, mcp_servers=self._servers)
        )

    async def _resumed(self, agent: Any, resume: Resume) -> Any:
        """Go on with a session in the way that this agent offers, if it can. Raises `UnansweredError`."""
        way = self._way(agent, resume)
        if way is None:
            what = "fork a session" if resume.fork else "go on with an earlier session"
            raise UnansweredError(Outcome(None, "start", f"this agent can't {what}; {_REMEDIES[resume.fork]}"))
        self._client.replaying = way[0] == _LOAD
        try:
            return await self._answer(*way)
        except UnansweredError as error:
            text = f"{error.outcome.error}; if it has no such session here, begin anew, without `resume`"
            raise UnansweredError(replace(error.outcome, error=text)) from None
        finally:
            self._client.replaying = False

    def _way(self, agent: Any, resume: Resume) -> tuple[str, Coroutine[Any, Any, Any]] | None:
        """The request by which this agent goes on with a session, or forks it."""
        name, connection, servers = resume.session_id, self._connection, self._servers
        if resume.fork:
            if _offers(agent, "agent_capabilities", "session_capabilities", "fork"):
                return "session/fork", connection.fork_session(name, self._work_dir, mcp_servers=servers)
        elif _offers(agent, "agent_capabilities", "load_session"):
            return _LOAD, connection.load_session(self._work_dir, name, mcp_servers=servers)
        elif _offers(agent, "agent_capabilities", "session_capabilities", "resume"):
            return "session/resume", connection.resume_session(name, self._work_dir, mcp_servers=servers)
        return None

    async def _answer(self, what: str, request: Coroutine[Any, Any, Any]) -> Any:
        """The agent's answer. Raises `UnansweredError`, also when its program ends while something holds its pipes."""
        asking = asyncio.create_task(request)
        try:
            await asyncio.wait({asking, self._program.exit}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({asking}, timeout=_LAST_WORDS if self._program.exit.done() else None)
            return await asking if asking.done() else self._silent()
        except RequestError as error:
            raise UnansweredError(of_refused_request(what, error.code, str(error), error.data)) from None
        except ConnectionError:
            raise UnansweredError(of_exit(await self._program.ended())) from None
        except ValueError as error:
            text = f"the agent's answer to {what} is none: {str(error)[:200]}"
            raise UnansweredError(Outcome(None, "internal", text)) from None
        finally:
            asking.cancel()

    def _silent(self) -> NoReturn:
        raise ConnectionError

    def _written(self, message: Json) -> None:
        if message.get("method") == AGENT_METHODS["session_prompt"]:
            self._client.heard = self._taken
            self._prompted.set()


def _offers(agent: Any, *names: str) -> bool:
    """Whether an agent says that it can do this. What it says in a form that is none doesn't count."""
    for name in names:
        agent = getattr(agent, name, None)
    return agent is not None and agent is not False


def _model(session: Any) -> str | None:
    """The model that a session uses, if its agent has that as an option."""
    for option in getattr(session, "config_options", None) or ():
        if option.category == "model":
            return str(option.current_value)[:_LONGEST_NAME]
    return None


def _server(name: str, server: Json) -> McpServerStdio:
    """A server of further tools, as this protocol tells of one."""
    env = [EnvVariable(name=variable, value=value) for variable, value in server["env"].items()]
    return McpServerStdio(
        name=name, command=which(server["command"]) or server["command"], args=server["args"], env=env
    )
