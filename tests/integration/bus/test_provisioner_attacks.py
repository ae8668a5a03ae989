"""The provisioner's credential creates missing streams; it can't read, change, empty or overwrite anything.

The attacks use a real credential as `sandherd identity init` mints it, on a broker with stored records.
"""

import json
from collections.abc import Iterator
from typing import Any

from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API, API_FROM_OUTSIDE
from sandherd.bus.auth.setup_permissions import INBOX
from sandherd.bus.stream_configs import consumer_config
from sandherd.contracts.streams import BY_CONSUMER, CONSUMERS
from sandherd.contracts.subjects import TABLE, Principal
from sandherd.stack.broker import Broker
from tests.integration.bus.provisioner import NAMES, STOLEN, attacker, configured
from tests.integration.bus.test_permissions_forwarding import contents, seed, targets
from tests.integration.bus.test_permissions_matrix import BROKERS_OWN, MALFORMED, listen_to, subjects

P = Principal


def forbidden() -> Iterator[tuple[str, object]]:
    """Requests that read, change, empty or delete, each with a body that would do so."""
    push = {"deliver_subject": STOLEN, "ack_policy": "none", "deliver_policy": "all"}
    ingest = consumer_config(BY_CONSUMER["event-ingest"]).as_dict()
    republish = {"republish": {"src": ">", "dest": f"{STOLEN}.>"}}
    yield "STREAM.UPDATE.EVENTS", configured("EVENTS", **republish)
    yield "STREAM.UPDATE.KV_tasks", configured("KV_tasks", **republish)
    yield "STREAM.UPDATE.KV_tasks", configured("KV_tasks", max_age=1_000_000_000)
    yield "STREAM.UPDATE.EVENTS", configured("EVENTS", max_bytes=1, discard="old")
    yield "STREAM.UPDATE.EVENTS", configured("EVENTS", max_msgs=1, discard="old")
    yield "STREAM.UPDATE.EVENTS", configured("EVENTS", sealed=True)
    yield "STREAM.CREATE.THIEF", {"name": "THIEF", "mirror": {"name": "KV_tasks"}, **republish}
    yield "STREAM.CREATE.THIEF", {"name": "THIEF", "sources": [{"name": "EVENTS"}], **republish}
    for name in ("KV_tasks", "EVENTS"):
        yield f"STREAM.PURGE.{name}", {}
        yield f"STREAM.DELETE.{name}", None
        yield f"STREAM.MSG.GET.{name}", {"seq": 1}
        yield f"STREAM.MSG.DELETE.{name}", {"seq": 1}
        yield f"DIRECT.GET.{name}", {"seq": 1}
        yield f"STREAM.SNAPSHOT.{name}", {"deliver_subject": STOLEN}
        yield f"STREAM.RESTORE.{name}", {"config": configured(name)}
        yield f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": push}
        yield f"CONSUMER.CREATE.{name}.thief", {"stream_name": name, "config": {**push, "name": "thief"}}
        yield f"CONSUMER.CREATE.{name}.thief.>", {"stream_name": name, "config": {**push, "name": "thief"}}
        yield (
            f"CONSUMER.DURABLE.CREATE.{name}.thief",
            {"stream_name": name, "config": {**push, "durable_name": "thief"}},
        )
    # The server deletes a consumer that is inactive for this time; then one of the same name could deliver anywhere.
    yield (
        "CONSUMER.CREATE.EVENTS.event-ingest",
        {"stream_name": "EVENTS", "config": {**ingest, "inactive_threshold": 1}},
    )
    yield "CONSUMER.CREATE.EVENTS.event-ingest", {"stream_name": "EVENTS", "config": {**ingest, "max_deliver": 1}}
    yield "CONSUMER.CREATE.EVENTS.event-ingest", {"stream_name": "EVENTS", "config": {**push, "name": "event-ingest"}}
    yield "CONSUMER.DELETE.EVENTS.event-ingest", None
    yield "CONSUMER.MSG.NEXT.COMMANDS.spawner-commands", {"batch": 10}
    yield "CONSUMER.PAUSE.EVENTS.event-ingest", {"pause_until": "2099-01-01T00:00:00Z"}


def other_configurations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Creations of existing streams, with settings that would read or empty them."""
    for name in ("EVENTS", "KV_tasks"):
        for changed in (
            {"republish": {"src": ">", "dest": f"{STOLEN}.>"}},
            {"max_age": 1_000_000_000},
            {"max_msgs": 1},
            {"max_msgs_per_subject": 1, "discard": "old"},
            {"mirror": {"name": "COMMANDS"}, "subjects": None},
            {"sources": [{"name": "COMMANDS"}]},
            {"subject_transform": {"src": ">", "dest": "sandherd.live.>"}},
            {"sealed": True},
        ):
            # Small, because the server first checks whether it has the space.
            yield name, configured(name, **changed, max_bytes=4096)
            yield name, configured(name, **changed)


async def configurations(herd: Broker) -> dict[str, object]:
    async with herd.provisioner() as js:
        streams = {name: (await js.stream_info(name)).config for name in NAMES}
        return streams | {row.name: (await js.consumer_info(row.stream, row.name)).config for row in CONSUMERS}


async def test_provisioner_credential_reads_changes_and_purges_nothing(herd: Broker) -> None:
    """Each request is a permission violation, in the API subjects of its account and of the streams' account."""
    await seed(herd)
    before, held = await configurations(herd), await contents(herd)
    stolen: list[str] = []

    async def receive(message: Msg) -> None:
        if message.subject.startswith(STOLEN):
            stolen.append(message.subject)

    async with attacker(herd) as publisher, herd.bus(P.SPAWNER) as spawner:
        await publisher.bus.client.subscribe(f"{INBOX}.>", cb=receive)
        attacks = [(f"{prefix}.{rest}", body) for prefix in (API, API_FROM_OUTSIDE) for rest, body in forbidden()]
        for subject, body in attacks:
            payload = b"" if body is None else json.dumps(body).encode()
            await publisher.bus.client.publish(subject, payload, reply=f"{INBOX}.answer")
        assert await publisher.refused("publish") == {subject.lower() for subject, _ in attacks}
        await spawner.publish("$KV.tasks.p1.task-1", b"SECRET", msg_id="later")
        await publisher.bus.flush()
    assert stolen == []
    assert await configurations(herd) == before
    after = await contents(herd)
    assert after == held | {"KV_tasks": (held["KV_tasks"][0] + 1, held["KV_tasks"][1])}


async def test_existing_stream_is_not_recreated_with_another_configuration(herd: Broker) -> None:
    """The server refuses the permitted request, whatever setting it adds, and the configuration stays."""
    await seed(herd)
    before, held = await configurations(herd), await contents(herd)
    async with attacker(herd) as publisher:
        for name, config in other_configurations():
            subject = f"{API_FROM_OUTSIDE}.STREAM.CREATE.{name}"
            answer = json.loads(await publisher.bus.request(subject, json.dumps(config).encode()))
            assert "error" in answer, config
        other = {"name": "OTHER", "subjects": ["other"]}
        renamed = await publisher.bus.request(f"{API_FROM_OUTSIDE}.STREAM.CREATE.EVENTS", json.dumps(other).encode())
        assert "error" in json.loads(renamed)
    assert (await configurations(herd), await contents(herd)) == (before, held)


async def test_reply_to_the_provisioner_is_neither_stored_nor_executed(herd: Broker) -> None:
    """The server checks no reply subject: every permitted request with every kind of reply changes no stream.

    In the account of the streams, the answer to `STREAM.INFO` with the reply subject `$KV.tasks.…` replaced a record.
    """
    await seed(herd)
    held = await contents(herd)
    replies = [*dict.fromkeys(targets()), f"{API}.STREAM.PURGE.KV_tasks", "$KV.tasks.p1.task-1"]
    async with attacker(herd) as publisher:
        for subject in (f"STREAM.INFO.{name}" for name in ("EVENTS", "KV_tasks")):
            for reply in replies:
                await publisher.bus.client.publish(f"{API_FROM_OUTSIDE}.{subject}", b"", reply=reply)
        for reply in replies:
            create = json.dumps(configured("EVENTS", description="forged")).encode()
            await publisher.bus.client.publish(f"{API_FROM_OUTSIDE}.STREAM.CREATE.EVENTS", create, reply=reply)
            info = f"{API_FROM_OUTSIDE}.CONSUMER.INFO.EVENTS.event-ingest"
            await publisher.bus.client.publish(info, b"", reply=reply)
        assert await publisher.refused("publish") == set()
    assert await contents(herd) == held


async def test_provisioner_publishes_and_subscribes_to_its_requests_only(herd: Broker) -> None:
    """The credential may only create and inspect what is declared, and use its own inbox."""
    allowed = {f"{API_FROM_OUTSIDE}.STREAM.{verb}.{name}" for verb in ("INFO", "CREATE") for name in NAMES}
    allowed |= {f"{API_FROM_OUTSIDE}.CONSUMER.INFO.{row.stream}.{row.name}" for row in CONSUMERS}
    everything = {subject for row in TABLE for subject, _ in subjects(row)} | {*BROKERS_OWN, *MALFORMED}
    assert allowed <= everything
    others = ["_INBOX_backup.x", "_INBOX_spawner.x", "_INBOX.x", "$KV.>", "$JS.>", "sandherd.>", ">"]
    async with attacker(herd) as publisher:
        for subject in everything:
            await publisher.bus.client.publish(subject, b"")
        assert await publisher.refused("publish") == {subject.lower() for subject in everything - allowed}
        await listen_to(publisher, [*others, f"{INBOX}.x"])
        assert await publisher.refused("subscription") == {subject.lower() for subject in others}
