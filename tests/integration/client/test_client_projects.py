"""An operator's requests concern all projects, unless one is named."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg

from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.requests import Audit, DeadLetter, DeadLetters, GetAudit, ListDeadLetters, Reply
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.stack.broker import Broker

INGEST = Principal.EVENT_INGEST
Neighbours = Any
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
Sandherd = Callable[..., Any]


async def test_operator_sees_the_dead_letters_of_all_projects(
    neighbours: Neighbours, sandherd: Sandherd, herd: Broker
) -> None:
    """Like `doctor`, `dead list` covers all projects, and shows the project of each letter, unless one is named."""
    projects: list[str] = []

    async def on_message(message: Msg) -> None:
        projects.append(message.subject.rpartition(".")[2])
        letters = [_letter(7, "event.other.sbx-one.agent.message"), _letter(8, "command.spawner.submit_task.third")]
        await message.respond(Reply[Any](ok=DeadLetters(letters=letters)).model_dump_json(exclude_none=True).encode())

    bus = neighbours.buses[INGEST]
    await bus.client.subscribe(request_subject(ListDeadLetters.type, "x").removesuffix("x") + "*", cb=on_message)
    await bus.flush()
    operator = ["--credentials", str(herd.credentials(Principal.OPERATOR))]
    status, out, _ = await sandherd(*operator, "dead", "list")
    assert status == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["7", "other"], ["8", "third"]]
    await sandherd(*operator, "dead", "list", "--project", "other")
    assert projects == ["fleet", "other"]


def _letter(number: int, subject: str) -> DeadLetter:
    return DeadLetter(
        number=number,
        service="event-ingest",
        reason=Problem(code=Code.INVALID_FIELD, message="too small", field="data.turn"),
        subject=f"sandherd.v1.{subject}",
        stream="EVENTS",
        stream_sequence=3,
        size=2,
        dead_at=NOON,
    )


async def test_audit_of_an_unknown_sandbox_is_not_found(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """The status for an unknown sandbox is 1, rather than a report that nothing is missing."""
    nothing = Audit(sources=[], source_count=0, event_count=0, missing=0, duplicates_refused=0, unstored=0, dead=0)
    await neighbours.answer(INGEST, GetAudit, lambda _: nothing)
    for form in ("table", "json"):
        status, out, err = await sandherd("audit", "sbx-never", "-o", form)
        assert (status, out) == (1, "")
        assert "there is no sandbox sbx-never" in err
