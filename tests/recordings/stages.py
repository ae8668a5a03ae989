"""The scripted models of a scenario: each request gets the next step of an agent's script as its response."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from aiohttp import web

from tests.http_servers import stop_server
from tests.models import anthropic, openai
from tests.models import anthropic_answers as claudes
from tests.models import openai_answers as gpts
from tests.models.ports import free_port
from tests.recordings.scenario import Act, Edit, Read, Run, Scenario, Step, Subagent, Tool, Write

WORK: Final = "/home/agent/work"
SMALL: Final = 9_000
_SUMMARY: Final = "create a detailed summary"
"""A part of the request with which Claude's program compacts the context."""
_MARK: Final = "Assignment "
"""The text before the name of a sub-agent's script, in its prompt."""


@dataclass
class Director:
    """Chooses the step that responds to a request. `reached` is called with each step before the response."""

    scenario: Scenario
    reached: Callable[[Step], Awaitable[None]]
    left: dict[str, list[Step]] = field(default_factory=dict)
    served: int = 0
    summaries: int = 0

    def __post_init__(self) -> None:
        self.left = {"": list(self.scenario.steps), **{name: list(one) for name, one in self.scenario.scripts.items()}}

    async def next_step(self, first: str, last: str) -> Step:
        """The step that responds to a request, chosen by its first message and its last one."""
        if _SUMMARY in last:
            self.summaries += 1
            summary = Step(text=f"<summary>The work so far, part {self.summaries}.</summary>", clock=20)
            await self.reached(summary)
            return summary
        # A sub-agent's first message is its prompt.
        script = next((name for name in self.scenario.scripts if f"{_MARK}{name}:" in first), "")
        steps = self.left[script]
        step = steps.pop(0) if steps else Step(text="Done.")
        self.served += 1
        await self.reached(step)
        return step


class ClaudeStage(anthropic.AnthropicModel):
    """Anthropic's Messages API."""

    def __init__(self, director: Director) -> None:
        super().__init__()
        self.director = director

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        request_data = anthropic.Request(await request.json(), dict(request.headers))
        self.requests[:] = [request_data]
        step = await self.director.next_step(*_ends(request_data.body))
        if step.failure is not None:
            failure = claudes.Failure(status=step.failure, message=step.message, headers={"x-should-retry": "true"})
            return web.json_response(failure.body(), status=failure.status, headers=failure.headers)
        usage = claudes.Usage(input_tokens=step.tokens or SMALL, output_tokens=120)
        return await anthropic._stream(request, claudes.Answer(blocks=_blocks(step), usage=usage), "claude-sonnet-4-5")


class OpenAIStage(openai.OpenAIModel):
    """OpenAI's chat completions."""

    def __init__(self, director: Director) -> None:
        super().__init__()
        self.director = director

    async def answer(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions."""
        request_data = openai.Request(await request.json(), dict(request.headers))
        model = str(request_data.body.get("model"))
        if not request_data.tools:
            return web.json_response(gpts.writes("A summary of the work so far.").document(model))
        step = await self.director.next_step("", "")
        if step.failure is not None:
            failure = gpts.Failure(status=step.failure, message=step.message)
            return web.json_response(failure.body(), status=failure.status)
        calls = tuple(gpts.Call(*_openhands_call(act)) for act in step.acts)
        usage = gpts.Usage(prompt_tokens=step.tokens or SMALL, completion_tokens=120)
        answer = gpts.Answer(text=step.text or None, thinking=step.thinking or None, calls=calls, usage=usage)
        return web.json_response(answer.document(model))


_STARTING: Final = asyncio.Lock()


@asynccontextmanager
async def served(kind: str, director: Director) -> AsyncIterator[str]:
    """The URL of a scripted model for a harness, for as long as the block runs."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    if kind == "claude":
        app.router.add_post("/v1/messages", ClaudeStage(director).answer)
        app.router.add_post("/v1/messages/count_tokens", anthropic._count)
    else:
        app.router.add_post("/v1/chat/completions", OpenAIStage(director).answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        async with _STARTING:  # two servers may find the same free port
            await web.TCPSite(runner, "127.0.0.1", free_port()).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}" + ("" if kind == "claude" else "/v1")
    finally:
        await stop_server(runner)


def _ends(body: dict[str, Any]) -> tuple[str, str]:
    messages = body.get("messages") or [{}]
    return json.dumps(messages[0]), json.dumps(messages[-1])


_ABOUT: Final = ("Run the command", "Check the state", "See what it prints", "Run it", "Look at the output")
_NUMBERS: Final = count()


def _blocks(step: Step) -> tuple[claudes.Block, ...]:
    thinking = (claudes.Thinking(step.thinking),) if step.thinking else ()
    text = (claudes.Text(step.text),) if step.text else ()
    return (*thinking, *text, *(claudes.Call(*_claude_call(act)) for act in step.acts))


def _claude_call(act: Act) -> tuple[str, dict[str, Any]]:
    match act:
        case Run(command, timeout, background, about):
            # A model words it differently each time, so it is not part of the call.
            found: dict[str, Any] = {"command": command, "description": about or _ABOUT[next(_NUMBERS) % len(_ABOUT)]}
            found |= {"timeout": timeout} if timeout else {}
            return "Bash", found | ({"run_in_background": True} if background else {})
        case Read(path, offset, limit):
            part = {name: value for name, value in (("offset", offset), ("limit", limit)) if value is not None}
            return "Read", {"file_path": f"{WORK}/{path}", **part}
        case Write(path, content):
            return "Write", {"file_path": f"{WORK}/{path}", "content": content}
        case Edit(path, old, new):
            return "Edit", {"file_path": f"{WORK}/{path}", "old_string": old, "new_string": new}
        case Subagent(script, about):
            prompt = f"{_MARK}{script}: {about}"
            return "Task", {"description": about[:40], "prompt": prompt, "subagent_type": "general-purpose"}
        case Tool(name, given):
            return name, given


def _openhands_call(act: Act) -> tuple[str, dict[str, Any]]:
    match act:
        case Run(command, timeout, _, _):
            return "terminal", {"command": command, **({"timeout": timeout // 1000} if timeout else {})}
        case Read(path, offset, limit):
            span = {} if offset is None else {"view_range": [offset, offset + (limit or 20)]}
            return "file_editor", {"command": "view", "path": f"{WORK}/{path}", **span}
        case Write(path, content):
            return "file_editor", {"command": "create", "path": f"{WORK}/{path}", "file_text": content}
        case Edit(path, old, new):
            where = {"path": f"{WORK}/{path}", "old_str": old, "new_str": new}
            return "file_editor", {"command": "str_replace", **where}
        case Tool(name, given):
            return name, given
        case Subagent():
            raise ValueError("OpenHands has no sub-agents")
