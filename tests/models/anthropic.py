"""A server with Anthropic's Messages API and scripted responses: the model in tests of real agents."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tests.http_servers import stop_server
from tests.models.anthropic_answers import Answer, Failure, beginning, document, ending
from tests.models.ports import free_port

SESSION_HEADER: Final = "X-Claude-Code-Session-Id"


@dataclass(frozen=True)
class Request:
    """A request of an agent to its model."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def session(self) -> str:
        """The agent's session, by its header."""
        return self.headers.get(SESSION_HEADER, "")

    @property
    def words(self) -> str:
        """All text of the request's messages, joined for searches."""
        return json.dumps(self.body.get("messages", []), ensure_ascii=False)

    @property
    def tools(self) -> set[str]:
        """The names of the tools that the model may call."""
        return {str(tool.get("name")) for tool in self.body.get("tools", [])}


Step = Answer | Failure | Callable[[Request], Answer | Failure]
"""The response to one request; a function examines the request first."""


@dataclass
class AnthropicModel:
    """The scripts of all sessions, and all requests."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
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

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        requested = Request(await request.json(), dict(request.headers))
        async with self._changed:
            self.requests.append(requested)
            self._changed.notify_all()
        steps = self._own.get(requested.session) or self._common
        step = steps.pop(0) if steps else Failure(status=400, message="the script has no further step")
        reply = step(requested) if callable(step) else step
        if isinstance(reply, Failure):
            return web.json_response(reply.body(), status=reply.status, headers=reply.headers)
        model = str(requested.body.get("model"))
        if not requested.body.get("stream"):
            return web.json_response(document(reply, model))
        return await _stream(request, reply, model)


async def _stream(request: web.Request, answer: Answer, model: str) -> web.StreamResponse:
    """Send the response as server-sent events; an agent that disconnects in the middle is no error here."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        await response.prepare(request)
        for event in beginning(answer, model):
            await response.write(event)
        if answer.gate is not None:
            await answer.gate.wait()
        for event in ending(answer):
            await response.write(event)
        await response.write_eof()
    except ConnectionError:
        pass
    return response


async def _count(request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens: about four characters are one token."""
    return web.json_response({"input_tokens": len(await request.read()) // 4})


@asynccontextmanager
async def anthropic_model() -> AsyncIterator[AnthropicModel]:
    """A model's server on a free port of this machine, for as long as the block runs."""
    model = AnthropicModel()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/messages", model.answer)
    app.router.add_post("/v1/messages/count_tokens", _count)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", free_port())
        await site.start()
        host, port = runner.addresses[0][:2]
        model.url = f"http://{host}:{port}"
        yield model
    finally:
        await stop_server(runner)
