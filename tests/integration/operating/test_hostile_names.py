"""Hostile names, sent to the real services in every field of every request and command with a name or a text."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from monitor.main import compose as compose_monitor
from sandherd.bus.connection import Bus
from sandherd.bus.errors import NoResponderError
from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.names import new_uuid
from sandherd.contracts.subjects import BY_NAME, Principal, command_subject, request_subject
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner
from tests.patience import PATIENCE
from tests.polling import eventually
from tests.unit.contracts.hostile_names import HOSTILE_NAMES
from tests.unit.contracts.string_fields import EACH, KEY, MODELS, StringField, string_fields
from tests.unit.contracts.test_contracts_hostile_names import NAMES, is_hostile, names_field

PROJECT: Final = "default"
REFUSAL: Final = re.compile(rf"sandherd\.v1\.event\.{PROJECT}\.[a-z0-9-]+\.(task|sandbox|message|monitor)\.refused")
WRITTEN: Final = ("EVENTS", "COMMANDS", "INBOX", "ARTIFACTS", "DEAD", "KV_tasks", "KV_sandboxes", "KV_secrets",
    "KV_secret_keys", "KV_approvals", "KV_messages", "KV_pool", "KV_projects")  # fmt: skip
"""Streams and buckets in which a hostile name would be stored if a service had accepted it."""
EACH_TIME: Final = ("*", ">", "../x", "a.b", "", "a\u2028b", "a\0", "x" * 64)
UNAVAILABLE_CODES: Final = {Code.INTERNAL, Code.UNAVAILABLE}


def is_for_operators(field: StringField) -> bool:
    row = BY_NAME.get(f"request.{field.contract}")
    return row is not None and Principal.OPERATOR in row.producers


FIELDS: Final = [field for field in string_fields() if is_for_operators(field)]


@pytest.fixture
async def operator(herd: Broker, postgres: str, tmp_path: Path) -> AsyncIterator[Bus]:
    """All services that reply to users, and a user who may send them every request."""
    services = [
        compose_spawner(herd.settings(Principal.SPAWNER, home=tmp_path / "home")),
        compose_relay(herd.settings(Principal.MESSAGE_RELAY)),
        compose_ingest(herd.settings(Principal.EVENT_INGEST, database_url=postgres)),
        compose_monitor(herd.settings(Principal.MONITOR)),
    ]
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service.running())
        bus = await stack.enter_async_context(herd.bus(Principal.OPERATOR))
        for field in {one.contract: one for one in FIELDS if one.contract.startswith("monitor.")}.values():
            await eventually(partial(_is_answered, bus, field), field.contract)
        yield bus


async def _is_answered(bus: Bus, field: StringField) -> bool:
    """Whether the monitor has the lease that this request needs, and has read its data."""
    try:
        problem = await refusal(bus, field, "sbx-1")
    except NoResponderError:
        return False
    return problem is None or problem.code not in UNAVAILABLE_CODES


async def last_numbers(herd: Broker, streams: tuple[str, ...] = WRITTEN) -> dict[str, int]:
    async with herd.provisioner() as jetstream:
        return {name: (await jetstream.stream_info(name)).state.last_seq for name in streams}


def alone(field: StringField, name: str) -> bytes:
    """The request with this name and only required fields, so that nothing else is refused first."""
    needed = {key for key, info in MODELS[field.contract].model_fields.items() if info.is_required()}
    whole = field.document(name)
    return json.dumps({key: value for key, value in whole.items() if key in {*needed, field.path[0]}}).encode()


async def refusal(bus: Bus, field: StringField, name: str) -> Problem | None:
    answer = json.loads(
        await bus.request(request_subject(field.contract, PROJECT), alone(field, name), timeout=PATIENCE)
    )
    return None if answer.get("error") is None else Problem.model_validate(answer["error"])


async def test_request_with_a_hostile_name_is_refused_by_its_service(operator: Bus, herd: Broker) -> None:
    """The error names the field; a text that is no name is accepted or refused without effect. Nothing is stored."""
    before = await last_numbers(herd)
    for field in FIELDS:
        for name in EACH_TIME:
            if not any(pattern for pattern in field.patterns) or field in NAMES:
                problem = await refusal(operator, field, name)
                where = f"{field.contract} {field.name} {name!r}: {problem}"
                assert problem is None or problem.code not in UNAVAILABLE_CODES, where
                assert problem is None or field.patterns or names_field(problem, field) or problem.field, where
                if field in NAMES and is_hostile(name, field.patterns):
                    assert problem is not None, where
                    assert names_field(problem, field), where
    assert await last_numbers(herd) == before
    assert len(FIELDS) > 50


def command(field: StringField, name: str) -> bytes:
    about = {"type": field.contract, "dataschema": f"urn:sandherd:v1:{field.contract}", "data": field.document(name)}
    envelope = {"specversion": "1.0", "id": str(new_uuid()), "source": "/sandherd/client/x", "subject": "x",
        "time": datetime.now(UTC).isoformat(), "sequence": 1, "project": PROJECT}  # fmt: skip
    return json.dumps(envelope | about).encode()


async def test_command_with_a_hostile_name_is_only_a_dead_letter(operator: Bus, herd: Broker) -> None:
    """Without the client's check the reason names the field; the project has only refusals."""
    fields = [
        field
        for field in NAMES
        if field.contract in COMMANDS and KEY not in field.path and EACH not in field.path
        if Principal.OPERATOR in BY_NAME[f"command.{field.contract}"].producers
    ]
    before = await last_numbers(herd)
    for place, field in enumerate(fields):
        name = next(one for one in HOSTILE_NAMES[place * 7 % 100 :] if is_hostile(one, field.patterns))
        subject = command_subject(field.contract, PROJECT)
        await operator.publish(subject, command(field, name), msg_id=str(new_uuid()))
    async with asyncio.timeout(PATIENCE), herd.provisioner() as jetstream:
        while (last := (await jetstream.stream_info("DEAD")).state.last_seq) < before["DEAD"] + len(fields):
            await asyncio.sleep(0.05)
        letters = [await jetstream.get_msg("DEAD", number) for number in range(before["DEAD"] + 1, last + 1)]
    after = await last_numbers(herd)
    changed = {name for name in WRITTEN if after[name] != before[name]}
    assert changed == {"COMMANDS", "DEAD", "EVENTS"}
    async with herd.provisioner() as jetstream:
        numbers = range(before["EVENTS"] + 1, after["EVENTS"] + 1)
        published = [(await jetstream.get_msg("EVENTS", number)).subject or "" for number in numbers]
    assert len(published) == len(fields)
    assert all(REFUSAL.fullmatch(subject) for subject in published), published
    reasons: list[Any] = [json.loads((letter.headers or {})["Sandherd-Reason"]) for letter in letters]
    assert sorted(reason["field"] for reason in reasons) == sorted(f"data.{field.name}" for field in fields)
    assert {reason["code"] for reason in reasons} == {Code.INVALID_FIELD}
