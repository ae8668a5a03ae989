"""How each kind of agent is made to do the acts of the conformance suite, and which of them it can't do."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil

from tests.drivers.toolchains import TOOLCHAINS, interpreter
from tests.integration.worker.conformance.acts import Act, Edit, Recall, Receive, Run, Say
from tests.models import anthropic_answers as claudes
from tests.models import openai_answers as gpts
from tests.models.anthropic import anthropic_model
from tests.models.openai import openai_model

PROGRAM: Final = Path(__file__).parent / "reporting_program.py"
SCRIPTED_ACP: Final = Path(__file__).parents[3] / "drivers" / "acp" / "scripted_agent.py"
_NUMBERS: Final = count(1)


@dataclass
class Adapter:
    """One kind of agent in one sandbox. Its class variables hold for all agents of the kind; the tests check them."""

    sandbox: Any
    kind: ClassVar[str]
    edits_with: ClassVar[str]
    """The name of its tool that edits a file, as in its events."""
    victims: ClassVar[dict[str, str]]
    """The processes whose end is the agent's end, each with a part of its command line."""
    receives_mid_turn: ClassVar[bool] = True
    """Whether a message reaches it within a turn, rather than after the turn."""
    follows_up: ClassVar[bool] = True
    """Whether it accepts a message after its task is done; otherwise the message is refused with the reason."""
    has_turns: ClassVar[bool] = True
    """Whether an interrupt ends one of its turns; otherwise its only turn, which is its whole life, continues."""
    stopped_as: ClassVar[str] = "interrupted"
    """The outcome that is reported for an interrupted turn."""
    keeps_session: ClassVar[bool] = True
    """Whether its session is a file, which is stored as an artifact at the end of each turn."""

    def harness(self) -> dict[str, Any]:
        """The task's settings of the harness."""
        return {"kind": self.kind}

    def variables(self) -> dict[str, str]:
        """The environment variables of the task."""
        return {}

    def words(self, *acts: Act) -> str:
        """The messages that make it do these acts, one after the other."""
        raise NotImplementedError

    async def remembers(self, text: str) -> bool:
        """Whether its last recall reported that it had received this text before."""
        raise NotImplementedError

    def begins(self, *acts: Act, secrets: dict[str, str] | None = None, **fields: Any) -> None:
        """Write the task, which is to do these acts; the secrets are variables of it."""
        secret = secrets or {}
        spec = {
            "text": self.words(*acts),
            "harness": self.harness(),
            "env": {**self.variables(), **secret},
            "secret_env": sorted(secret),
            **fields,
        }
        (self.sandbox.state / "task.json").write_text(json.dumps(spec))
        home = self.sandbox.state.parent / "home"
        home.mkdir(exist_ok=True)
        self.sandbox.environment |= {"SANDHERD_TOOLCHAINS": str(TOOLCHAINS), "HOME": str(home)}

    def processes(self) -> list[psutil.Process]:
        """All living processes of its sandbox except the worker, also those that have left their session."""
        found: list[psutil.Process] = self.sandbox.processes()
        return found

    def running(self, part: str) -> list[psutil.Process]:
        """Its processes whose command line contains this part; others may end during the search."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if part in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def victim(self, which: str) -> psutil.Process:
        """The process of that name in `victims`."""
        (found,) = self.running(self.victims[which])
        return found


class Program(Adapter):
    """An agent whose instructions are the lines of its task."""

    def words(self, *acts: Act) -> str:
        return "\n".join(line for act in acts for line in self.lines(act))

    def lines(self, act: Act) -> list[str]:
        """The lines of one act."""
        raise NotImplementedError

    async def remembers(self, text: str) -> bool:
        contents = [event.data.content for event in await self.sandbox.events("message")]
        recalled = [part for content in contents if content.startswith("[") for part in [json.loads(content)]]
        return bool(recalled) and text in json.dumps(recalled[-1])


class Command(Program):
    """Any program. Its only turn is its whole life: later messages are refused. It has no session."""

    kind = "command"
    edits_with = "edit"
    victims: ClassVar[dict[str, str]] = {"program": PROGRAM.name}
    follows_up = False
    has_turns = False
    stopped_as = "exit"
    keeps_session = False

    def harness(self) -> dict[str, Any]:
        return {"kind": "command", "argv": [sys.executable, str(PROGRAM)]}

    def lines(self, act: Act) -> list[str]:
        match act:
            case Edit(path, text):
                return [f"edit {path} {text}", "spend"]
            case Run(command):
                return [f"run {command}"]
            case Receive(text):
                return [f"hear {text}"]
            case Say(text):
                return [f"say {text}"]
            case Recall():
                return ["prompts"]


class Acp(Program):
    """An agent behind the Agent Client Protocol, which can't receive messages within a turn.

    The agent stores its session itself: the protocol has its name, but no file.
    """

    kind = "acp"
    edits_with = "edit"
    victims: ClassVar[dict[str, str]] = {"driver": "sandherd_drivers.acp", "program": SCRIPTED_ACP.name}
    receives_mid_turn = False
    keeps_session = False
    _calls = 0

    def harness(self) -> dict[str, Any]:
        return {"kind": "acp", "argv": [str(interpreter("acp")), str(SCRIPTED_ACP), "forks"]}

    def variables(self) -> dict[str, str]:
        stored = self.sandbox.log.parent / "sessions"  # where every sandbox of the test finds it
        stored.mkdir(exist_ok=True)
        return {"SCRIPTED_SESSIONS": str(stored)}

    def lines(self, act: Act) -> list[str]:
        self._calls += 1
        call = f"t{self._calls}"
        match act:
            case Edit(path, text):
                edit = f"write {self.sandbox.work / path} {text}"
                return [f'tool {call} edit {{"path": "{path}"}}', edit, f"done {call} ok", "cost 0.25", "tokens 30 4"]
            case Run(command):
                return [f"tool {call} execute {json.dumps({'command': command})}", f"sh {call} {command}"]
            case Receive():
                return []
            case Say(text):
                return [f"say {text}"]
            case Recall():
                return ["prompts", "think and"]  # its texts would be joined with the next ones


class Modelled(Adapter):
    """An agent that does what its model says: everything but the model is real. Its messages are sent to the model."""

    model: Any

    def words(self, *acts: Act) -> str:
        steps = [step for act in acts if (step := self.step(act)) is not None]
        self.model.script(*steps)
        return f"Do this, in {len(steps)} steps, number {next(_NUMBERS)}."

    def step(self, act: Act) -> Any:
        """The response of the model."""
        raise NotImplementedError

    def until_received(self, text: str, meanwhile: Callable[[], Any]) -> Callable[[Any], Any]:
        """A step of the script that is repeated until the model receives this text."""
        script = self.model._common

        def step(requested: Any) -> Any:
            if text not in requested.words:
                script.insert(0, step)
                return meanwhile()
            following = script.pop(0)
            return following(requested) if callable(following) else following

        return step

    async def remembers(self, text: str) -> bool:
        return text in self.model.requests[-1].words


class Claude(Modelled):
    """Claude Code, by its Agent SDK."""

    kind = "claude"
    edits_with = "Write"
    victims: ClassVar[dict[str, str]] = {"driver": "sandherd_drivers.claude", "program": "_bundled/claude"}

    def harness(self) -> dict[str, Any]:
        interpreter("claude")
        return {"kind": "claude"}

    def variables(self) -> dict[str, str]:
        key = {"ANTHROPIC_API_KEY": "sk-ant-scripted", "CLAUDE_CODE_MAX_RETRIES": "0"}
        return {"ANTHROPIC_BASE_URL": self.model.url, **key}

    def step(self, act: Act) -> Any:
        match act:
            case Edit(path, text):
                return claudes.calls("Write", file_path=path, content=text + "\n")
            case Run(command):
                return claudes.calls("Bash", command=command)
            case Receive(text):
                return self.until_received(text, lambda: claudes.calls("Bash", command="sleep 0.1"))
            case Say(text):
                return claudes.writes(text)
            case Recall():
                return None


class OpenHands(Modelled):
    """OpenHands, by its SDK. It runs in the driver: it has no program."""

    kind = "openhands"
    edits_with = "file_editor"
    victims: ClassVar[dict[str, str]] = {"driver": "sandherd_drivers.openhands"}

    def harness(self) -> dict[str, Any]:
        interpreter("openhands")
        return {"kind": "openhands"}

    def variables(self) -> dict[str, str]:
        prices = {"LLM_INPUT_COST_PER_TOKEN": "0.000002", "LLM_OUTPUT_COST_PER_TOKEN": "0.00001"}
        requested = {"LLM_MODEL": "openai/scripted", "LLM_API_KEY": "sk-scripted", "LLM_NUM_RETRIES": "0"}
        return {"LLM_BASE_URL": self.model.url, **requested, **prices}

    def step(self, act: Act) -> Any:
        match act:
            case Edit(path, text):
                where = str(self.sandbox.work / path)
                return gpts.calls("file_editor", command="create", path=where, file_text=text + "\n")
            case Run(command):
                return gpts.calls("terminal", command=command)
            case Receive(text):
                return self.until_received(text, lambda: gpts.calls("terminal", command="sleep 0.1"))
            case Say(text):
                return gpts.writes(text)
            case Recall():
                return None


KINDS: Final[dict[str, type[Adapter]]] = {one.kind: one for one in (Command, Claude, OpenHands, Acp)}
_MODELS: Final[dict[str, Callable[[], AbstractAsyncContextManager[Any]]]] = {
    "claude": anthropic_model,
    "openhands": openai_model,
}


@asynccontextmanager
async def adapter(kind: str, sandbox: Any) -> AsyncIterator[Adapter]:
    """The adapter of this kind, for one sandbox, and its model if it has one."""
    made = KINDS[kind](sandbox)
    async with _MODELS.get(kind, nullcontext)() as model:
        if isinstance(made, Modelled):
            made.model = model
        yield made
