"""Operators of a project use the API to requeue its dead letters, and to run the checks of `doctor`."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from sandherd.bus.consumers.dead_letters import dead_headers
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.errors import BusError, RefusedError
from sandherd.client import Herd
from sandherd.contracts.commands import CancelTask, MuteRule, SendMessage
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import Requeue
from sandherd.contracts.requests.dead_letters import REQUEUES
from sandherd.contracts.subjects import Principal, command_subject, dead_subject, event_subject
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.telemetry import logs
from tests.integration.gateway.conftest import OTHER, PROJECT, Api, herd_context
from tests.polling import eventually

P = Principal
LETTERS = "/api/v1/dead-letters"
SANDBOX = "sbx-1"
COMMANDS = {P.SPAWNER: CancelTask.type, P.MESSAGE_RELAY: SendMessage.type, P.MONITOR: MuteRule.type}
"""A command of each service that handles commands; event-ingest handles events."""


def event_of(project: str) -> Any:
    """An event or a command that its service can handle."""
    return wrap(
        AgentMessage(content="hello", content_length=5), AgentMessage.type, source=f"/sandherd/sandbox/{SANDBOX}",
        sequence=1, project=project, subject=SANDBOX, time=datetime.now(UTC), sandboxid=SANDBOX,
    )  # fmt: skip


async def bury(herd: Broker, service: Principal, project: str, data: bytes) -> int:
    """Store a dead letter of a service, as if it could not be handled for a time; returns its number."""
    command = COMMANDS.get(service)
    subject = command_subject(command, project) if command else event_subject(project, SANDBOX, AgentMessage.type)
    delivery = Delivery(subject, data, "COMMANDS" if command else "EVENTS", 9, 1, datetime.now(UTC))
    headers = dead_headers(service, delivery, Problem(code=Code.INTERNAL, message="was down"))
    async with herd.bus(service) as bus:
        dead = dead_subject(service, Code.INTERNAL)
        return (await bus.publish(dead, data, msg_id=f"dead-{service}-{project}-{data!r}", headers=headers)).seq


async def of_role(api: Api, client: Herd, role: Any) -> Api:
    """The API with a token of another role or project."""
    return Api(api.url, api.session, (await client.create_token(f"as-{role}", role)).text)


async def test_dead_letter_is_requeued_by_an_operator_of_its_project(
    api: Api, herd: Broker, http: aiohttp.ClientSession, client: Herd
) -> None:
    """A letter that can be handled now is removed, with its effect; another stays with the reason; both are logged."""
    good = await bury(herd, P.EVENT_INGEST, PROJECT, event_of(PROJECT).to_json())
    bad = await bury(herd, P.EVENT_INGEST, PROJECT, b"no json")
    async with Herd.connect(herd_context(herd, OTHER)) as other:
        stranger = await of_role(api, other, "operate")
    approver = await of_role(api, client, "approve")
    assert (await approver.call("POST", f"{LETTERS}/{good}/requeue"))[0] == 403
    for number in (good, bad, 999):
        status, problem, _ = await stranger.call("POST", f"{LETTERS}/{number}/requeue")
        assert (status, problem["code"], problem["remedy"]) == (404, "not_found", "list the dead letters"), number
    assert await numbers(api) == [bad, good]

    logs.configure("test", "info")
    with capture_logs() as lines:
        done = await api.call("POST", f"{LETTERS}/{good}/requeue")
        still = await api.call("POST", f"{LETTERS}/{bad}/requeue")
    assert (done[0], done[1]["outcome"], done[1]["requeued_by"]) == (202, "done", "token:all"), done
    assert done[2]["Location"] == f"{LETTERS}/{good}"
    assert (still[0], still[1]["outcome"]) == (202, "dead")
    assert "JSON" in still[1]["detail"]
    found = [line for line in lines if line["event"] == "dead letter requeued"]
    letters = [(line["number"], line["project"], line["user"]) for line in found]
    assert letters == [(number, PROJECT, "token:all") for number in (good, bad)]
    assert await numbers(api) == [bad]
    assert (await api.call("POST", f"{LETTERS}/{good}/requeue"))[0] == 404
    await eventually(partial(is_stored, api), "the event is stored")


async def numbers(api: Api) -> list[int]:
    """The numbers of the project's dead letters, newest first."""
    return [letter["number"] for letter in (await api.call("GET", LETTERS))[1]["letters"]]


async def is_stored(api: Api) -> bool:
    events = (await api.call("GET", f"/api/v1/events?sandbox={SANDBOX}&types={AgentMessage.type}"))[1]["events"]
    return [event["envelope"]["data"]["content"] for event in events] == ["hello"]


@pytest.mark.parametrize("service", sorted(REQUEUES))
async def test_service_requeues_no_letter_of_another_project(
    services: dict[Principal, Service], herd: Broker, client: Herd, service: str
) -> None:
    """The service itself checks the subject, and the gateway's credential does not permit all projects at once."""
    request: type[Requeue] = REQUEUES[service]
    number = await bury(herd, Principal(service), OTHER, b"no json")
    async with herd.bus(P.GATEWAY) as gateway:
        with pytest.raises(RefusedError) as refused:
            await gateway.ask(request(number=number), PROJECT)
        assert refused.value.problem.code is Code.NOT_FOUND
        with pytest.raises(BusError):
            await gateway.ask(request(number=number), FLEET, timeout=1)
        assert (await gateway.ask(request(number=number), OTHER)).outcome == "dead"


async def test_doctor_finds_the_same_over_the_api(
    api: Api, herd: Broker, client: Herd, services: dict[Principal, Service], tmp_path: Path
) -> None:
    """All checks of the services, broker and history are run; a fault has its cause and a remedy without a command."""

    async def report() -> dict[str, dict[str, Any]]:
        status, found, _ = await api.call("GET", "/api/v1/doctor")
        assert status == 200, found
        wrong = [one for one in found["checks"] if one["state"] == "wrong"]
        assert found["healthy"] is (not wrong)
        assert not [one for one in found["checks"] if "`" in (one["remedy"] or "")]
        return {one["check"]: one for one in found["checks"]}

    async def well() -> bool:
        states = {name: one["state"] for name, one in (await report()).items()}
        return states.keys() >= CHECKED and set(states.values()) <= {"ok", "look"}

    async def missing() -> bool:
        one = (await report())["streams"]
        return one["state"] == "wrong" and "stream OUTPUT: missing" in one["found"] and bool(one["remedy"])

    await eventually(well, "nothing is wrong")
    assert (await (await of_role(api, client, "approve")).call("GET", "/api/v1/doctor"))[0] == 403
    async with herd.provisioner() as jetstream:
        await jetstream.delete_stream("OUTPUT")
    await eventually(missing, "the missing stream is named")
    await bury(herd, P.SPAWNER, PROJECT, b"no json")
    services[P.MONITOR].examining._clock = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    found = await report()
    assert (found["dead letters"]["state"], found["dead letters"]["remedy"]) == ("look", "list the dead letters")
    assert (found["clock"]["state"], bool(found["clock"]["remedy"])) == ("wrong", True)
    assert found["gateway"]["found"].startswith("version ")


CHECKED = {
    "broker", "spawner", "event-ingest", "monitor", "message-relay", "gateway", "streams", "consumers", "migrations",
    "lag event-ingest", "lag monitor-commands", "clock", "live state", "history lag", "history", "dead letters",
}  # fmt: skip
