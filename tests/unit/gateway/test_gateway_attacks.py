"""The effects of hostile requests and slow clients are limited: a refusal, and no more memory than is planned."""

import asyncio
import io
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from gateway.access_tokens import Caller, PresentedCredential
from gateway.application import application
from gateway.downloads import MAX_BYTES_OF_PROJECT, DownloadSpace, FileResponse
from gateway.frame_queues import FEED_BYTES, QUEUE_BYTES, FrameQueue, end_slowest
from gateway.problems import problem_of, problem_response
from gateway.request_guard import RequestGuard
from gateway.routes import herd
from gateway.stream_reader import EventFrame
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from tests.patience import PATIENCE

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TOKEN = b"Bearer shd_p1_" + b"A" * 43


def test_queue_of_a_client_is_bounded_in_bytes() -> None:
    """The queue of a client is limited in bytes: a thousand events of the largest size would be 256 MiB."""
    queue = FrameQueue(None, 1)
    piece = QUEUE_BYTES // 4
    for number in range(4):
        queue.offer(EventFrame(number, "sbx-1", "agent.message", "x" * piece, NOW))
    assert not queue.overflowed
    queue.offer(EventFrame(5, "sbx-1", "agent.message", "x", NOW))
    assert queue.overflowed


def test_queue_counts_the_memory_of_characters() -> None:
    """With one character beyond ASCII, each character of a document may take four bytes of memory; they count."""
    queue = FrameQueue(None, 1)
    queue.offer(EventFrame(1, "sbx-1", "agent.message", "x" * (QUEUE_BYTES // 4) + "\N{SHEEP}", NOW))
    assert queue.overflowed


def test_queues_of_a_project_are_bounded_together() -> None:
    """If many slow clients of different sandboxes have full queues, the slowest ones are ended, and no others."""
    count = FEED_BYTES // QUEUE_BYTES + 2
    slow = [FrameQueue(f"sbx-{number}", 1) for number in range(count)]
    shared = [FrameQueue("sbx-0", 1) for _ in range(50)]
    fast = FrameQueue("sbx-fast", 1)
    for queue in [*slow, *shared]:
        queue.offer(EventFrame(1, str(queue.entity), "agent.message", "x" * QUEUE_BYTES, NOW))
    fast.offer(EventFrame(1, "sbx-fast", "agent.message", "x", NOW))
    end_slowest([*slow, *shared, fast])
    assert not fast.overflowed
    assert sum(queue.size for queue in [*slow, fast]) <= FEED_BYTES
    for queue in shared:
        assert queue.overflowed == slow[0].overflowed
    end_slowest(shared)
    assert sum(queue.overflowed for queue in slow) == 3


async def test_bytes_of_taken_events_are_free_again() -> None:
    """A client that reads is never disconnected, however much it has read."""
    queue = FrameQueue(None, 1)
    for number in range(9):
        queue.offer(EventFrame(number, "sbx-1", "agent.message", "x" * (QUEUE_BYTES // 2), NOW))
        assert (await queue.take()) is not None
    assert not queue.overflowed


async def test_request_that_ends_within_its_body_is_not_carried_out() -> None:
    """A command whose connection is lost half-way is refused: the received part may be another valid command."""

    class Tokens:
        async def authenticate(self, _credential: PresentedCredential) -> Caller:
            return Caller("p1", "ci", "work", "d", NOW)

    async def inner(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError("the request is carried out")

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    tokens: Any = Tokens
    statuses: list[int] = []
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": b"{}", "more_body": True}, {"type": "http.disconnect"}]
    guard = RequestGuard(
        inner, tokens, hosts=frozenset(), per_second=9, on_response=lambda status, _: statuses.append(status)
    )
    headers = [(b"host", b"localhost"), (b"authorization", TOKEN), (b"content-length", b"9")]
    await guard({"type": "http", "method": "POST", "path": "/api/v1/tasks", "headers": headers}, receive, send)
    assert statuses == [400]


async def test_error_does_not_repeat_the_value() -> None:
    """The tag of a union, which pydantic repeats, is not in the error: it may be a secret in the wrong field."""
    found = {"type": "union_tag_invalid", "loc": ("body", "kind"), "msg": "Input tag 'hunter2' found",
             "ctx": {"tag": "hunter2", "expected_tags": "'a', 'b'", "discriminator": "'kind'"}}  # fmt: skip
    handler: Any = application(lambda: None).exception_handlers[RequestValidationError]  # type: ignore[arg-type,return-value]  # not used
    response = await handler(None, RequestValidationError([found]))
    assert response.status_code == 422
    assert b"hunter2" not in response.body
    assert b"its kind is none of" in response.body


def test_downloads_share_a_bounded_space() -> None:
    """Downloads wait while a replica has no space for them, and no project may use all of the space."""
    space = DownloadSpace()
    with pytest.raises(HerdError) as refused, space.reserve("p1", MAX_BYTES_OF_PROJECT + 1):
        pass
    assert refused.value.problem.code is Code.TOO_LARGE
    for _ in range(2):
        with space.reserve("p1", MAX_BYTES_OF_PROJECT), space.reserve("p2", MAX_BYTES_OF_PROJECT):
            for project in ("p1", "p3"):
                with pytest.raises(HerdError) as refused, space.reserve(project, 1):
                    pass
                assert refused.value.problem.code is Code.BUSY
                assert refused.value.problem.retry_after_seconds


async def test_space_of_a_download_is_free_after_its_client_has_left() -> None:
    """The space is released even if the client disconnects before the first byte."""

    async def send(_message: Any) -> None:
        raise OSError

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    held, file = ExitStack(), io.BytesIO(b"x" * 100)
    held.enter_context(file)
    with suppress(OSError, ClientDisconnect):
        await FileResponse(file, held, {})({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    assert file.closed


async def test_search_for_an_artifact_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for an unknown name in the whole history ends within the time that a client may wait."""

    async def endless(*_arguments: Any, **_options: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(herd, "_SEARCH_SECONDS", 0.01)
    session: Any = SimpleNamespace(herd=SimpleNamespace(find_artifact=endless))
    request: Any = None
    with pytest.raises(HerdError) as ended:
        async with asyncio.timeout(PATIENCE):
            await herd.download_artifact(session, request, "art-1")
    assert ended.value.problem.code is Code.UNAVAILABLE


def test_unavailable_has_retry_after() -> None:
    """The response has `Retry-After`, so that clients do not retry immediately."""
    assert problem_response(problem_of(Code.UNAVAILABLE, "no reply")).headers["retry-after"] == "1"
    assert "retry-after" not in problem_response(problem_of(Code.INTERNAL, "bug")).headers
