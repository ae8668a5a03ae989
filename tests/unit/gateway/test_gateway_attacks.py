"""What hostile requests and slow clients may cause: a refusal, and no more memory than is planned."""

from datetime import UTC, datetime
from typing import Any

from fastapi.exceptions import RequestValidationError

from gateway.access import Caller
from gateway.application import application
from gateway.guard import Guard
from gateway.live import QUEUE_BYTES, FrameQueue
from gateway.problems import problem_of, problem_response
from gateway.stream_reader import Frame
from sandherd.contracts.errors import Code

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_queue_of_a_client_is_bounded_in_bytes() -> None:
    """A thousand events of the largest size would be 256 MiB for one client: bytes count, too."""
    queue = FrameQueue(None, 1)
    piece = QUEUE_BYTES // 4
    for number in range(4):
        queue.offer(Frame(number, "sbx-1", "agent.message", "x" * piece, NOW))
    assert not queue.overflowed.is_set()
    queue.offer(Frame(5, "sbx-1", "agent.message", "x", NOW))
    assert queue.overflowed.is_set()


async def test_bytes_of_taken_events_are_free_again() -> None:
    """A client that reads is never disconnected, however much it has read."""
    queue = FrameQueue(None, 1)
    for number in range(9):
        queue.offer(Frame(number, "sbx-1", "agent.message", "x" * (QUEUE_BYTES // 2), NOW))
        assert (await queue.take(0.01)) is not None
    assert not queue.overflowed.is_set()


async def test_request_that_ends_within_its_body_is_not_carried_out() -> None:
    """A command whose connection is lost half-way is refused: what is there of it may be a valid, other command."""

    class Tokens:
        async def authenticate(self, _authorization: str) -> Caller:
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
    guard = Guard(inner, tokens, hosts=frozenset(), per_second=9, measured=lambda status, _: statuses.append(status))
    headers = [(b"host", b"localhost"), (b"authorization", b"x"), (b"content-length", b"9")]
    await guard({"type": "http", "method": "POST", "path": "/api/v1/tasks", "headers": headers}, receive, send)
    assert statuses == [400]


async def test_error_does_not_repeat_the_value() -> None:
    """Pydantic repeats the tag of a union; it may be a secret that stands in the wrong field."""
    found = {"type": "union_tag_invalid", "loc": ("body", "kind"), "msg": "Input tag 'hunter2' found",
             "ctx": {"tag": "hunter2", "expected_tags": "'a', 'b'", "discriminator": "'kind'"}}  # fmt: skip
    handler: Any = application(lambda: None).exception_handlers[RequestValidationError]  # type: ignore[arg-type,return-value]  # not used
    response = await handler(None, RequestValidationError([found]))
    assert response.status_code == 422
    assert b"hunter2" not in response.body
    assert b"its kind is none of" in response.body


def test_unavailable_has_retry_after() -> None:
    """Clients that retry by the header do not do so at once."""
    assert problem_response(problem_of(Code.UNAVAILABLE, "no reply")).headers["retry-after"] == "1"
    assert "retry-after" not in problem_response(problem_of(Code.INTERNAL, "bug")).headers
