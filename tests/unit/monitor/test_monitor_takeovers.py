"""What must hold while partitions move, while the broker does not respond, and while the monitor waits for a reply."""

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from monitor.actions import Actions
from monitor.enforcement import Enforcement
from monitor.event_reader import EventBatch
from monitor.herd import Herd
from monitor.partition import Partition
from monitor.partition_plan import PartitionId
from monitor.replica_watch import ReplicaWatch
from monitor.rule_set import ALL
from monitor.sandbox_state import Outcome
from monitor.snapshot import pack
from monitor.snapshot_store import Snapshots, manifest_key, piece_key
from monitor.stream_follower import StreamFollower
from monitor.summary_writer import SummaryWriter
from sandherd.bus.connection import Bus, ConnectionCallbacks, ConnectionLostError
from sandherd.bus.consumers.pull import ConsumerUnresponsiveError
from sandherd.bus.lease import LeaseLostError
from sandherd.bus.publisher import EventPublisher
from sandherd.bus.replies import Acknowledgement
from sandherd.bus.stream_bounds import StreamBounds
from sandherd.contracts.commands import PauseSandbox, RequestApproval, SendMessage
from sandherd.contracts.events.agent import AgentWaiting
from sandherd.contracts.states import SandboxState
from sandherd.telemetry.meters import Meters
from tests.unit.monitor.holders import KEY, NOW, RULES, Broker, Lease, enforcement


async def steered(story: Any) -> tuple[Broker, Herd, Enforcement]:
    """A sandbox whose agent repeats a call, and was sent a message."""
    broker, herd = Broker(), Herd(rules=RULES)
    for event in story.loop(4):
        herd.fold(event)
    acting = enforcement(broker, herd)
    await acting.enforce(KEY, NOW, None)
    assert broker.sent == [SendMessage]
    return broker, herd, acting


# --- while it waits for a reply ------------------------------------------------------------------------------------


async def test_event_that_is_read_while_a_command_is_published_is_not_lost(story: Any) -> None:
    """Checks, and partitions that begin, publish commands while the reader folds events in."""
    broker, herd = Broker(), Herd(rules=RULES)
    for event in story.loop(4):
        herd.fold(event)
    usage, end = story.seen("agent.usage", input_tokens=70), story.seen("agent.completed", exit_code=0)

    def read() -> None:
        herd.fold(usage)
        herd.fold(end)

    broker.meanwhile = read
    await enforcement(broker, herd).enforce(KEY, NOW, None)
    state = herd.live[KEY]
    assert (len(broker.commands), state.progress.input_tokens, state.finished_at) == (1, 70, end.at)
    assert state.number == end.number


async def test_next_command_does_not_wait_for_the_former_one_that_was_carried_out_meanwhile(story: Any) -> None:
    """The sandbox is paused before the broker's reply to the command: the approval is requested at once."""
    broker, herd, acting = await steered(story)
    state = herd.live[KEY]
    assert state.steering is not None
    pause = replace(state.steering, step="pause", approval="pause-1", sent_at=None)
    herd.replace(state.changed(steering=pause))
    pausing = story.seen("sandbox.paused", runtime="x")

    def read() -> None:
        herd.fold(pausing)

    broker.meanwhile = read
    await acting.enforce(KEY, NOW, None)
    await acting.enforce(KEY, NOW, None)
    assert broker.sent[-2:] == [PauseSandbox, RequestApproval]


# --- after the lease is lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [0, 1, 2], ids=["analysis", "decision", "command"])
async def test_decision_is_not_published_again_after_the_lease_was_lost(story: Any, stored: int) -> None:
    """The connection is lost before the acknowledgement, and another replica has acted when it is back.

    What may be stored of it has a number that no other event of its source has.
    """
    bus: Any = Bus("test", ConnectionCallbacks())
    lease: Any = Lease()
    attempts: list[tuple[str, Any]] = []

    async def publish(subject: str, payload: bytes, **_: Any) -> Acknowledgement:
        attempts.append((subject, json.loads(payload)))
        if len(attempts) == stored + 1:
            lease.held = False
            raise ConnectionLostError(subject)
        return Acknowledgement("EVENTS", len(attempts), duplicate=False)

    async def connected() -> None:
        return None

    bus.publish, bus._until_connected = publish, connected
    publisher = EventPublisher(bus, "monitor")
    herd = Herd(rules=RULES)
    for event in story.loop(4):
        herd.fold(event)
    actions = Actions(bus, publisher).while_held(lease)
    acting = Enforcement(bus, lease, actions, Meters(CollectorRegistry()), herd)
    with pytest.raises(LeaseLostError):
        await acting.enforce(KEY, NOW, None)
    assert len(attempts) == stored + 1
    events = [found for subject, found in attempts if ".event." in subject]
    await publisher.publish(AgentWaiting(), project="p1", entity="sbx-1")
    numbers = [(found["source"], found["sequence"]) for found in (*events, attempts[-1][1])]
    assert len(set(numbers)) == len(numbers)
    assert attempts[-1][1]["sequence"] == (1 if stored < 2 else 3)


def two_holders(story: Any) -> tuple[Broker, list[Herd]]:
    """What two replicas know that both take themselves for the holder: the same events."""
    herds = [Herd(rules=RULES), Herd(rules=RULES)]
    for event in story.loop(4):
        for herd in herds:
            herd.fold(event)
    return Broker(), herds


def kinds(broker: Broker) -> list[str]:
    return [one.type.removeprefix("monitor.") for one in broker.events]


def read_decision(story: Any, broker: Broker, herd: Herd) -> None:
    """The replica reads the decision that is stored."""
    [decision] = [one for one in broker.events if one.type == "monitor.intervention_decided"]
    seen = story.seen(decision.type, **decision.data.model_dump())
    herd.fold(replace(seen, id=decision.id))


async def test_holder_that_was_suspended_before_its_write_adds_no_decision(story: Any) -> None:
    """After its check of the lease, another replica has decided: it sends nothing, and reads that decision first."""
    broker, (new, old) = two_holders(story)
    await enforcement(broker, new).enforce(KEY, NOW, None)
    acting = enforcement(broker, old)
    await acting.enforce(KEY, NOW + timedelta(seconds=3), None)
    assert kinds(broker) == ["guardian_analysed", "intervention_decided"]
    assert (old.live[KEY].steering, len(broker.commands)) == (None, 1)
    read_decision(story, broker, old)
    await acting.enforce(KEY, NOW + timedelta(seconds=3), None)
    assert kinds(broker) == ["guardian_analysed", "intervention_decided"]
    assert old.live[KEY].steered == 1


async def test_holder_that_was_suspended_before_its_write_adds_no_outcome(story: Any) -> None:
    """This holds also if it would publish another outcome."""
    broker, (new, old) = two_holders(story)
    await enforcement(broker, new).enforce(KEY, NOW, None)
    read_decision(story, broker, old)
    decided: tuple[tuple[Herd, Outcome], ...] = ((new, "ignored"), (old, "undelivered"))
    for herd, outcome in decided:
        state = herd.live[KEY]
        assert state.steering is not None
        herd.replace(state.changed(steering=replace(state.steering, outcome=outcome)))
        await enforcement(broker, herd).enforce(KEY, NOW, None)
    outcomes = [one.data.outcome for one in broker.events if one.type == "monitor.intervention_outcome"]
    assert outcomes == ["ignored"]


async def test_analysis_is_stored_once_if_the_monitor_is_killed_before_its_decision(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor makes the same decision, and publishes both events. The stream has the first one already."""
    broker, (killed, successor) = two_holders(story)

    async def is_killed(*_: Any) -> None:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(Actions, "publish_decision", is_killed)
        with pytest.raises(ConnectionResetError):
            await enforcement(broker, killed).enforce(KEY, NOW, None)
    await enforcement(broker, successor).enforce(KEY, NOW, None)
    assert kinds(broker) == ["guardian_analysed", "intervention_decided"]


# --- the end of a sandbox by its record ----------------------------------------------------------------------------


async def test_intervention_has_an_outcome_if_the_record_of_its_sandbox_has_ended(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spawner's record shows the end before its event is read. The outcome is `finished`, once."""
    broker, herd, acting = await steered(story)
    later = NOW + timedelta(hours=1)

    async def read_record(*_: Any) -> Any:
        return SimpleNamespace(state=SandboxState.FAILED, task="task-1")

    monkeypatch.setattr("monitor.enforcement.read_record", read_record)
    for _ in range(3):
        await acting.enforce(KEY, later, NOW - timedelta(days=1))
    herd.fold(story.seen("sandbox.failed"))
    await acting.enforce(KEY, later, NOW - timedelta(days=1))
    outcomes = [one.data.outcome for one in broker.events if one.type == "monitor.intervention_outcome"]
    assert outcomes == ["finished"]
    assert KEY not in herd.live
    assert KEY in herd.unwritten


# --- snapshots -----------------------------------------------------------------------------------------------------


async def test_each_snapshot_counts_from_its_own_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions without sandboxes have equal snapshots. Events that were stored after the earlier one are read."""
    stored: dict[str, bytes] = {}
    positions = {PartitionId(2, 0): 1000, PartitionId(2, 1): 900}
    for place, position in positions.items():
        manifest, pieces = pack(Herd(position), "1-a")
        stored[manifest_key(place)] = manifest.model_dump_json().encode()
        stored |= {piece_key(place, "1-a", number): piece for number, piece in enumerate(pieces)}

    async def last_message(_bus: Any, _stream: str, subject: str) -> Any:
        return SimpleNamespace(data=stored[subject], seq=1)

    monkeypatch.setattr("monitor.snapshot_store.last_message", last_message)
    bus: Any = Broker()
    snapshots = Snapshots(bus, ALL)
    herds = [await snapshots.restore(PartitionId(3, number), positions) for number in range(3)]
    assert [herd.position for herd in herds] == [900, 900, 900]
    own = [await snapshots.restore(place, {place: position}) for place, position in positions.items()]
    assert [herd.position for herd in own] == [1000, 900]
    assert len({id(herd) for herd in (*herds, *own)}) == 5


# --- summaries -----------------------------------------------------------------------------------------------------


async def test_summary_is_not_written_without_a_connection(story: Any) -> None:
    """The write would be sent when the connection is back, and replace the last summary of a successor."""
    written: list[str] = []

    async def publish(subject: str, *_: Any, **__: Any) -> None:
        written.append(subject)

    bus: Any = SimpleNamespace(connected=False, publish=publish)
    lease: Any = Lease()
    writer, herd = SummaryWriter(bus, lease), Herd(rules=RULES)
    for event in story.loop(1):
        herd.fold(event)
    await writer.write(herd)
    assert (written, herd.changed) == ([], {KEY})
    bus.connected = True
    await writer.write(herd)
    assert (written, herd.changed) == (["$KV.summaries.p1.sbx-1"], set())


# --- the stream ----------------------------------------------------------------------------------------------------


class Stream:
    """A stream whose replica that replies to direct reads may lag behind."""

    def __init__(self, last: int, shown: int) -> None:
        self.last = last
        self.shown = shown
        self.requested: list[int] = []
        self.silent = False

    async def bounds(self) -> StreamBounds:
        if self.silent:
            raise ConsumerUnresponsiveError("no leader")
        return StreamBounds(NOW, 1, self.last, "")

    async def read_from(self, first: int, _wanted: Any) -> EventBatch | None:
        self.requested.append(first)
        return EventBatch([], self.shown, NOW) if first <= self.shown else None

    async def has_after(self, first: int) -> bool:
        return first <= self.last

    def problem(self) -> str | None:
        return None


async def never(_: Partition) -> None:
    raise AssertionError


def late_partition(position: int) -> Any:
    bus: Any = Broker()
    lease: Any = Lease()
    actions = Actions(bus, EventPublisher(bus, "monitor"))
    meters = Meters(CollectorRegistry())
    part = Partition(
        bus, PartitionId(1, 0), lease, ALL, snapshots=Snapshots(bus, ALL), actions=actions, meters=meters
    )  # fmt: skip
    part.herd.position = position
    return part


async def test_partition_does_not_begin_before_a_replica_of_the_stream_that_lags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it lags: what the former holder has decided is in the events that it does not have yet."""
    monkeypatch.setattr("monitor.stream_follower._EMPTY_PAUSE_SECONDS", 0)
    bus: Any = Broker()
    stream: Any = Stream(last=1000, shown=990)
    begun: list[int] = []

    async def joined(part: Partition) -> None:
        begun.append(part.herd.position)

    follower = StreamFollower(bus, 1, on_new=never, on_joined=joined)
    follower.reader, follower.position = stream, 1000
    part = late_partition(900)
    follower.add(part)
    for _ in range(20):
        await follower._read_for([part])
    assert (begun, part.is_late, part.herd.position) == ([], True, 990)
    stream.shown = 1000
    await follower._read_for([part])
    assert begun == [1000]


async def test_new_events_are_not_skipped_by_a_partition_that_finds_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last events were deleted, and new ones are read for the other partitions meanwhile."""
    monkeypatch.setattr("monitor.stream_follower._EMPTY_PAUSE_SECONDS", 0)
    bus: Any = Broker()
    stream: Any = Stream(last=0, shown=990)

    async def joined(_: Partition) -> None:
        return None

    follower = StreamFollower(bus, 1, on_new=never, on_joined=joined)
    follower.reader, follower.position = stream, 1000
    stored = stream.read_from

    async def meanwhile(first: int, wanted: Any) -> EventBatch | None:
        found: EventBatch | None = await stored(first, wanted)
        follower.position = (follower.position or 0) + 10  # read for others while this reply was on its way
        return found

    stream.read_from = meanwhile
    part = late_partition(990)
    part.read_until = 1000
    follower.add(part)
    for _ in range(6):
        before = follower.position
        await follower._read_for([part])
        assert part.herd.position <= (before or 0)


async def test_silence_counts_anew_after_the_stream_did_not_respond(story: Any) -> None:
    """Without a leader of the stream no worker can publish, and the connection of the monitor is not lost."""
    bus: Any = Broker()
    stream: Any = Stream(last=10, shown=10)
    actions = Actions(bus, EventPublisher(bus, "monitor"))
    watch = ReplicaWatch(bus, 1, ALL, actions=actions, meters=Meters(CollectorRegistry()))
    watch._follower.reader = stream
    await watch.tick()
    assert watch._watching_since == NOW
    stream.silent = True
    with pytest.raises(ConsumerUnresponsiveError):
        await watch.tick()
    stream.silent, later = False, NOW + timedelta(minutes=5)
    stream.bounds = lambda: _returned(StreamBounds(later, 1, 10, ""))
    await watch.tick()
    assert watch._watching_since == later


async def _returned(bounds: StreamBounds) -> StreamBounds:
    return bounds
