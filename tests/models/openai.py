"""A server with OpenAI's chat completions and scripted responses: the model in tests of real agents."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tests.http_servers import stop_server
from tests.models.openai_answers import Answer, Failure, writes
from tests.models.ports import free_port

SESSION_HEADER: Final = "x-litellm-session-id"
TITLE: Final = "A title"


@dataclass(frozen=True)
class Request:
    """A request of an agent to its model."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def session(self) -> str:
        """The agent's conversation, by its header."""
        return self.headers.get(SESSION_HEADER, "")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the request."""
        return list(self.body.get("messages", []))

    @property
    def roles(self) -> list[str]:
        """The roles in it, in order."""
        return [str(message.get("role")) for message in self.messages]

    @property
    def words(self) -> str:
        """All text of the request's messages, joined for searches."""
        return json.dumps(self.messages, ensure_ascii=False)

    @property
    def tools(self) -> set[str]:
        """The names of the tools that the model may call."""
        return {str(tool.get("function", {}).get("name")) for tool in self.body.get("tools", [])}


Step = Answer | Failure | Callable[[Request], Answer | Failure]
"""The response to one request; a function examines the request first."""


@dataclass
class OpenAIModel:
    """The scripts of all sessions, and all requests.

    A request without tools is no step of a script: an agent may also request a title for its conversation.
    """

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    aside: list[Request] = field(default_factory=list)
    _common: list[Step] = field(default_factory=list)
    _own: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def script(self, *steps: Step, session: str | None = None) -> None:
        """Add steps to the script of a session, or to that of every session without its own."""
        (self._common if session is None else self._own[session]).extend(steps)

    async def requested(self, times: int) -> Request:
        """Wait for this number of requests, and return the last of them."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= times)
        return self.requests[times - 1]

    async def answer(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions."""
        requested = Request(await request.json(), {name.lower(): value for name, value in request.headers.items()})
        model = str(requested.body.get("model"))
        if not requested.tools:
            self.aside.append(requested)
            return web.json_response(writes(TITLE).document(model))
        async with self._changed:
            self.requests.append(requested)
            self._changed.notify_all()
        steps = self._own.get(requested.session) or self._common
        step = steps.pop(0) if steps else Failure(status=400, message="the script has no further step")
        reply = step(requested) if callable(step) else step
        if isinstance(reply, Failure):
            return web.json_response(reply.body(), status=reply.status, headers=reply.headers)
        if reply.gate is not None:
            await reply.gate.wait()
        return web.json_response(reply.document(model))


@asynccontextmanager
async def openai_model() -> AsyncIterator[OpenAIModel]:
    """A model's server on a free port of this machine, for as long as the block runs. Its URL ends with `/v1`."""
    model = OpenAIModel()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", free_port())
        await site.start()
        host, port = runner.addresses[0][:2]
        model.url = f"http://{host}:{port}/v1"
        yield model
    finally:
        await stop_server(runner)
