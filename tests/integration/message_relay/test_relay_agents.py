"""Messages between agents on a real broker: routed within their project, or refused with the reason."""

from datetime import UTC, datetime
from typing import Any

from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import Principal

World = Any


async def send_to_agent(world: World, sandbox: str, recipient: str, *, project: str = "default") -> str:
    """Publish as a worker that its agent messages another; returns the message's name."""
    data = AgentMessageSent(recipient=recipient, content="leave it", message_id=new_name("msg"))
    event = wrap(
        data,
        data.type,
        source=f"/sandherd/sandbox/{sandbox}",
        sequence=1,
        project=project,
        subject=sandbox,
        sandboxid=sandbox,
        time=datetime.now(UTC),
    )
    async with world.herd.bus(Principal.WORKER, project=project, sandbox=sandbox) as bus:
        await bus.publish_event(event)
    return data.message_id


async def test_message_of_an_agent_reaches_another_of_its_project(world: World) -> None:
    """The message passes through the inbox with its sender; the receipt returns in the same way."""
    await world.record("sbx-1")
    await world.record("sbx-2")
    handed: list[InboxMessage] = []
    async with world.relay().running(), world.worker("sbx-2") as two, world.worker("sbx-1") as one:

        def keep(message: InboxMessage) -> bytes:
            handed.append(message)
            return bytes(two.acknowledge(message))

        two.answers = keep
        message = await send_to_agent(world, "sbx-1", "sbx-2")
        await world.until_published(message, "acknowledged")
        answer = await send_to_agent(world, "sbx-2", "sbx-1")
        await world.until_published(answer, "acknowledged")
        steps = [event["type"] for event in (await world.stored())[message]]
    assert steps == ["message.queued", "message.delivered", "message.acknowledged"]
    assert [(one.message, one.sender_id, one.content) for one in handed] == [
        (message, "sbx-1", "[MESSAGE FROM AGENT sbx-1] leave it")
    ]
    assert one.received == ["[MESSAGE FROM AGENT sbx-2] leave it"]


async def test_undeliverable_message_is_rejected_with_the_reason(world: World) -> None:
    """A recipient that has ended, is unknown, is the sender itself or of another project is rejected alike."""
    await world.record("sbx-1")
    await world.end("sbx-2")
    async with world.relay().running(), world.worker("sbx-1") as one:
        messages = [await send_to_agent(world, "sbx-1", recipient) for recipient in ("sbx-2", "sbx-3", "sbx-1")]
        # `sbx-1` of the project default exists, but does not concern that other project.
        elsewhere = await send_to_agent(world, "sbx-9", "sbx-1", project="other")
        for message in messages:
            await world.until_published(message, "rejected")
        while not (stored_events := await world.stored()).get(elsewhere):
            await world.client.client.flush()
    reasons = [stored_events[message][0]["data"]["reason"] for message in messages]
    assert "is terminated" in reasons[0]
    assert reasons[1:3] == ["there is no sandbox sbx-3", "an agent can't send messages to itself"]
    assert [(event["project"], event["type"]) for event in stored_events[elsewhere]] == [("other", "message.rejected")]
    assert one.received == []
