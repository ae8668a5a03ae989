"""WebSockets of clients that read nothing, that are too many, or that send invalid messages."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.access_tokens import Caller
from gateway.sockets import CLOSE_TRY_LATER, Socket, SocketEndError, SocketTable, document_of
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

NOW = datetime.now(UTC)
CALLER = Caller("p1", "t", "work", "d", NOW + timedelta(days=1))


async def test_client_that_takes_nothing_is_disconnected() -> None:
    """The connection is closed immediately, without a close frame, which the client would not read either."""
    aborted: list[str] = []
    counted: list[str] = []

    async def never(_text: str) -> None:
        await asyncio.Event().wait()

    connection = SimpleNamespace(abort=lambda: aborted.append("closed"))
    websocket: Any = SimpleNamespace(send_text=never, scope={"sandherd.socket": connection})
    streams: Any = SimpleNamespace(stall=0.0, meters=SimpleNamespace(count=counted.append))
    with pytest.raises(SocketEndError) as ended:
        await Socket(websocket, streams, CALLER).send({"a": 1})
    assert (ended.value.code, aborted, len(counted)) == (CLOSE_TRY_LATER, ["closed"], 1)


async def test_sockets_of_a_project_are_limited_and_take_none_of_another() -> None:
    """The limit applies to each project, and to unauthenticated sockets. A socket that has ended does not count."""
    table = SocketTable(max_of_project=1, max_pending=1)
    async with table.count("p1"), table.count("p2"), table.count(None):
        for project in ("p1", None):
            with pytest.raises(HerdError) as refused:
                async with table.count(project):
                    pass
            assert refused.value.problem.code is Code.BUSY
    async with table.count("p1"):
        pass


def test_text_that_is_no_object_ends_a_socket() -> None:
    """A message that is nested too deeply also ends the socket."""
    assert document_of('{"a": 1}') == {"a": 1}
    for text in ("", "[1]", "1", "{", "[" * 100_000):
        with pytest.raises(SocketEndError):
            document_of(text)


def test_reason_of_a_close_frame_is_valid_unicode() -> None:
    """The reason may contain a name from the client with half of a surrogate pair, which no frame can contain."""
    reason = SocketEndError(CLOSE_TRY_LATER, "start.\ud800\u202e: unknown").reason
    assert reason.encode().decode() == "start.\ufffd\ufffd: unknown"
