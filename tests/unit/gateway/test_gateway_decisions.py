"""The gateway's decisions without a broker: the caller, the start of a stream, and what a client gets when."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import AsyncMock

import pytest
from starlette.datastructures import Headers

from gateway.access_tokens import AccessError, Caller, PresentedCredential, caller_of, check_role
from gateway.api_server import CONNECTION
from gateway.browser_security import request_credential
from gateway.event_stream import EventStreams
from gateway.frame_queues import FrameQueue
from gateway.live_feeds import EventSource
from gateway.problems import STATUS, problem_of, problem_response
from gateway.request_guard import RequestGuard
from gateway.request_heads import is_known_host
from gateway.sessions import command_id, derived_name
from gateway.stream_cursors import StreamStart, cursor, start_of
from gateway.stream_reader import EventFrame, StreamState, epoch_of
from sandherd.bus.direct_get import StoredMessage
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.names import safe_name
from sandherd.contracts.records import AccessRole, SharedAccessToken
from tests.patience import PATIENCE

GOLDEN = Path(__file__).parents[3] / "libs/sandherd/contracts/golden/v1"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
STATE = StreamState("77", 10, 20)
TOKEN = SharedAccessToken(project="p1", token="ci", role="work", expires_at=NOW + timedelta(seconds=1))


def caller(role: str) -> Caller:
    return caller_of(TOKEN.model_copy(update={"role": role}), PresentedCredential("token", "p1", "d"), NOW)


def found(authorization: str) -> PresentedCredential:
    return request_credential(Headers({"authorization": authorization}))


def test_only_a_bearer_token_of_the_right_form_is_looked_up() -> None:
    """The project is part of the token. Anything else is refused before the bucket is read."""
    text = f"shd_my-project_{'A' * 43}"
    assert found(f"Bearer {text}").project == "my-project"
    assert found(f"bearer {text}") != found(f"Bearer {text[:-1]}B")
    for header in ("", text, f"Basic {text}", f"Bearer {text}x", "Bearer shd_*_" + "A" * 43, f"Bearer {text}\n.>"):
        with pytest.raises(AccessError) as refused:
            found(header)
        assert refused.value.status == 401


def test_token_is_valid_in_its_project_until_it_expires() -> None:
    """An expired, unknown or foreign token is refused, from the very moment of its expiry."""
    assert caller_of(TOKEN, PresentedCredential("token", "p1", "d"), NOW).name == "token:ci"
    for record, project, now in ((None, "p1", NOW), (TOKEN, "p2", NOW), (TOKEN, "p1", TOKEN.expires_at)):
        with pytest.raises(AccessError) as refused:
            caller_of(record, PresentedCredential("token", project, "d"), now)
        assert refused.value.status == 401


def test_each_role_includes_those_before_it() -> None:
    """A lower role is refused with 403 and the remedy."""
    roles: tuple[AccessRole, ...] = ("read", "work", "approve", "operate")
    for index, role in enumerate(roles):
        for needed in roles[: index + 1]:
            check_role(caller(role), needed)
        for needed in roles[index + 1 :]:
            with pytest.raises(AccessError) as refused:
                check_role(caller(role), needed)
            assert (refused.value.status, needed in str(refused.value.problem.remedy)) == (403, True)


def test_stream_begins_behind_the_position_or_says_why_not() -> None:
    """A position that the stream can't continue from has a reason, and the stream begins with new events."""
    assert start_of(None, STATE) == StreamStart(20)
    assert [start_of(cursor("77", after), STATE) for after in (9, 15, 20)] == [
        StreamStart(9),
        StreamStart(15),
        StreamStart(20),
    ]
    for wanted in (cursor("76", 15), cursor("77", 8), cursor("77", 21), "15", "77-x", "", "77-" + "9" * 40):
        start = start_of(wanted, STATE)
        assert start.after == 20
        assert start.resync


def test_epoch_differs_for_streams_created_at_different_moments() -> None:
    """Nanoseconds are part of the epoch, and the epoch is valid as part of a position."""
    first, second = epoch_of("2026-11-28T01:44:47.550141001Z"), epoch_of("2026-11-28T01:44:47.550141002Z")
    assert first != second
    assert start_of(cursor(first, 3), StreamState(first, 1, 5)) == StreamStart(3)


def frame(sequence: int, entity: str = "sbx-1") -> EventFrame:
    return EventFrame(sequence, entity, "agent.message", "{}", NOW)


async def test_queue_gives_its_entitys_frames_and_reports_a_slow_reader() -> None:
    """An event that does not fit is not queued: the client is disconnected, and continues from its position."""
    queue, overflows = FrameQueue("sbx-1", 1, max_events=2), []
    queue.on_overflow = lambda: overflows.append(queue)
    queue.offer(frame(1, "sbx-2"))
    queue.offer(frame(2))
    queue.offer(frame(3))
    assert not queue.overflowed
    assert [await queue.take() for _ in range(2)] == [frame(2), frame(3)]
    assert await woken(queue) is None
    queue.offer(frame(4))
    queue.offer(frame(5))
    queue.offer(frame(6))
    assert overflows == [queue]
    assert await woken(queue) is None


async def woken(queue: FrameQueue) -> EventFrame | None:
    """The result of `take` after `wake`."""
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.wake()
    return await taking


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("localhost:8765", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("API.example:1", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("localhost:80@evil.example", False),
    ],
)
def test_only_known_hosts_are_served(header: str, *, known: bool) -> None:
    """A name that resolves to the loopback is refused, so that no web page reaches the API by rebinding."""
    assert is_known_host(header, frozenset({"localhost", "127.0.0.1", "[::1]", "api.example"})) is known


async def test_requests_of_one_token_are_limited() -> None:
    """Above its rate a token gets 429 with the time to wait, and another token is served."""

    class Tokens:
        async def authenticate(self, credential: PresentedCredential) -> Caller:
            return Caller("p1", "ci", "read", credential.digest, NOW)

    async def inner(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    statuses: list[int] = []
    sent: list[Any] = []
    tokens: Any = Tokens
    guard = RequestGuard(
        inner, tokens, hosts=frozenset(), per_second=0.6, on_response=lambda status, _: statuses.append(status)
    )
    for token in (b"A", b"A", b"B"):
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer shd_p1_" + token * 43)]
        await guard({"type": "http", "method": "GET", "path": "/api/v1/tasks", "headers": headers}, receive, send)
    assert statuses == [200, 429, 200]
    refused = next(dict(one["headers"]) for one in sent if one.get("status") == 429)
    assert int(refused[b"retry-after"]) >= 1


def test_names_and_ids_of_a_key_are_its_own() -> None:
    """The same key gives the same name and id in one project, and other ones elsewhere."""
    assert safe_name(derived_name("p1", "key")) == derived_name("p1", "key")
    assert len({derived_name("p1", "key"), derived_name("p2", "key"), derived_name("p1", "key2")}) == 3
    assert command_id("p1", "POST", "/x", "key") == command_id("p1", "POST", "/x", "key")
    assert command_id("p1", "POST", "/x", "key") != command_id("p1", "POST", "/y", "key")
    assert (command_id("a").version, command_id("a").variant) == (8, "specified in RFC 4122")


def test_every_code_has_a_status_and_busy_has_retry_after() -> None:
    """An error of any service becomes problem+json."""
    assert STATUS.keys() == set(Code)
    busy = Problem(code=Code.BUSY, message="later", retry_after_seconds=1.2)
    response = problem_response(busy)
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert b'"remedy": "retry"' in problem_response(problem_of(Code.REFUSED, "no", remedy="retry")).body


async def test_event_that_was_read_from_the_stream_is_not_repeated_by_the_feed() -> None:
    """A client may have read further than the shared feed when it joins: it gets each event once nevertheless."""

    class Reader:
        async def batch(self, _subject: str, first: int, _most: int) -> list[StoredMessage]:
            return [one for one in stored if one.sequence >= first]

    class Feed:
        clients: ClassVar[set[FrameQueue]] = set()
        stream_count = 1

        def join(self, entity: str | None) -> FrameQueue:
            queue = FrameQueue(entity, 2)
            for number in (2, 3):  # the feed is behind: it reads 2 after the client did
                queue.offer(frame(number, "task-1"))
            return queue

    data = golden("events/task.cancelled.json")
    subject = f"sandherd.v1.event.demo.{data['subject']}.task.cancelled"
    stored = [StoredMessage(number, subject, NOW, {}, encoded(data)) for number in (1, 2)]
    feed: Any = Feed()
    reader: Any = Reader()
    source, got = EventSource(feed, reader, "demo", None), []
    async for one in source.frames(0, lambda: None):
        if one is None:
            break
        got.append(one.sequence)
        asyncio.get_running_loop().call_soon(source.beat)  # None, if there is no further event
    assert got == [1, 2, 3]


async def test_stream_that_begins_while_the_gateway_stops_ends() -> None:
    """The request may have passed the guard before the stop, and the service would wait for the stream."""

    class Feeds:
        reader: Any = SimpleNamespace(
            state=AsyncMock(return_value=StreamState("e", 1, 0)), batch=AsyncMock(return_value=[])
        )

        @asynccontextmanager
        async def of(self, _project: str) -> AsyncIterator[Any]:
            yield SimpleNamespace(join=lambda entity: FrameQueue(entity, 1), clients=set(), stream_count=1)

    feeds: Any = Feeds()
    unused: Any = None
    connection: Any = SimpleNamespace(stay_open=lambda _: None, extend=lambda _: None, is_full=False)
    caller = Caller("p1", "ci", "read", "0", datetime.now(UTC) + timedelta(hours=1))
    streams = EventStreams(feeds, unused, unused)
    streams.stop()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(PATIENCE):
        await streams.open(caller, None, None)({CONNECTION: connection}, unused, send)
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not streams.responses


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return found


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
