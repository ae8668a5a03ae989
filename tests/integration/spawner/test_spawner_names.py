"""Input is validated at its entry: names of sandboxes, and replies of workers."""

import json
from typing import Any

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from sandherd.bus.connection import RefusedError
from sandherd.contracts.commands import CreateSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import Download, ExecStatus, ListFiles
from sandherd.contracts.subjects import Principal, sandbox_request_subject
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.sandboxes.command_decisions import name_refusal
from tests.integration.spawner.played import access_handlers, make_record
from tests.patience import PATIENCE

READ = {"path": "x", "kind": "file", "size": 1, "sha256": "0" * 64, "data": "QQ=="}
NONSENSE: dict[str, Any] = {
    "a mode with setuid": READ | {"mode": 0o6777},
    "a negative size": READ | {"size": -1},
    "another kind": READ | {"kind": "device"},
    "no digest at all": READ | {"sha256": "x"},
    "a list": [1, 2],
    "nothing": None,
    "text": "x" * 1000,
    "an artifact without an end": READ | {"artifact": {"artifact": "../x", "size": 10**18}},
    "a done that is none": READ | {"done": "perhaps"},
}
DOCUMENTS = {name: json.dumps({"ok": reply}).encode() for name, reply in NONSENSE.items()} | {
    "no JSON": b"\xff\xfe",
    "a number of 400 digits": b'{"ok": {"path": "x", "kind": "file", "size": 1' + b"0" * 400 + b"}}",
    "10,000 levels": b'{"ok": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "empty": b"",
}


async def test_name_invalid_in_a_credential_is_refused(herd: Broker, person: Any) -> None:
    """A name that is invalid in a credential is refused by an event with the reason; the service logs no errors."""
    with capture_logs() as logged:
        async with compose(herd.settings(Principal.SPAWNER, home=person.home)).running():
            for name in ("sbx-x-join", "sbx-join", "x"):
                await person.command(CreateSandbox(sandbox=name), name)
                await person.receives(name, "sandbox.refused")
                assert "does not end with '-join'" in person.event_data(name, "sandbox.refused")["reason"]
            assert not [one for one in person.events if one["type"] == "sandbox.requested"]
    assert [line["event"] for line in logged if line["event"] == "service running"]
    assert [line for line in logged if line["log_level"] == "error" or line.get("exc_info")] == []


def test_other_names_are_accepted() -> None:
    """A name that only resembles a joiner's is valid."""
    assert [name_refusal(name) for name in ("sbx-x", "sbx-join1", "sbx-joiner", "sbx-x-join-1")] == [None] * 4


async def test_invalid_reply_of_a_worker_is_refused_without_a_retry(herd: Broker) -> None:
    """An invalid reply of a worker is refused at once, and the client gets no advice to try again."""
    async with (
        access_handlers(herd) as live,
        herd.bus(Principal.CLIENT, project="p1") as client,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
    ):
        await make_record(live)

        replies = [b""]

        async def lie(message: Msg) -> None:
            await message.respond(replies[-1])

        for kind in ("worker.download", "worker.list_files", "worker.exec_status"):
            await worker.client.subscribe(sandbox_request_subject(kind, "p1", "sbx-1"), cb=lie)
        await worker.flush()
        questions: tuple[Any, ...] = (
            Download(sandbox="sbx-1", transfer="trf-1", path="x"),
            ListFiles(sandbox="sbx-1"),
            ExecStatus(sandbox="sbx-1", exec="exc-1", wait_seconds=0),
        )
        for name, document in DOCUMENTS.items():
            replies.append(document)
            for requested in questions:
                with pytest.raises(RefusedError) as raised:
                    await client.ask(requested, "p1", timeout=PATIENCE)
                assert raised.value.problem.code is Code.REFUSED, name
