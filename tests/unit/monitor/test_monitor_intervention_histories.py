"""Random histories of one agent under the ladder: events out of order and repeated, takeovers, a lost relay.

A monitor that loses its lease, or is killed, does so between any two of its actions. Its successor has its snapshot.
"""

import os
import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from monitor.facts import ObservedEvent
from monitor.guardian import NextCommand, after_command, command_to_send, outcome, steer
from monitor.herd import Herd
from monitor.intervention_ladder import STEPS, rank
from monitor.partition_plan import PartitionId, partition_of
from monitor.sandbox_state import SandboxActivity
from monitor.snapshot import merge_herds, pack, unpack
from monitor.state_fold import fold, fold_unchecked
from sandherd.contracts.events.monitor import MonitorInterventionOutcome, SteeringStep
from sandherd.contracts.names import DerivedIds
from tests.unit.monitor.rule_sets import with_ladder

IDS = DerivedIds(b"of the monitors")
FEW, MANY = 40, int(os.environ.get("SANDHERD_HISTORIES", "300"))
TURNS = 160


class KilledError(Exception):
    """The monitor is killed."""


class Played:
    """One herd of one agent, a relay and a spawner that may be unavailable, and a monitor that may be killed."""

    def __init__(self, seed: int, new_story: Any) -> None:
        self.random = random.Random(seed)
        self.story = new_story()
        self.highest: SteeringStep = self.random.choice(STEPS)
        self.rules = with_ladder(self.highest, self.random.choice([0, 0, 20]))
        self.stream: list[ObservedEvent] = []
        self.state: SandboxActivity | None = None
        self.snapshot: tuple[Any, list[bytes], int] | None = None
        self.read = 0
        self.seconds = 0.0
        self.calls = 0
        self.pending: list[tuple[NextCommand, Any]] = []
        self.done: set[tuple[str, NextCommand]] = set()
        self.unavailable = False
        self.paused = self.stopped = self.finished = False
        self.decided: list[tuple[Any, bool]] = []
        self.commands: Counter[tuple[str, NextCommand]] = Counter()

    def append(self, event_type: str, **fields: Any) -> ObservedEvent:
        """An event that the broker stores."""
        return self.store(self.story.seen(event_type, self.seconds, **fields))

    def store(self, event: ObservedEvent) -> ObservedEvent:
        """Store an event, in the order of the stream."""
        self.stream.append(replace(event, number=len(self.stream) + 1))
        return self.stream[-1]

    @property
    def now(self) -> datetime:
        at: datetime = self.stream[0].at
        return at + timedelta(seconds=self.seconds)

    # --- the agent, and users --------------------------------------------------------------------------------------

    def act(self) -> None:
        """The agent, if it can do anything, repeats itself or does something else; or it ends."""
        if self.paused or self.stopped:
            return
        if self.finished or self.random.random() < 0.004:
            if not self.finished:
                self.finished = True
                self.append("agent.completed", exit_code=0)
            return
        self.calls += 1
        given = "ls" if self.random.random() < 0.8 else f"cat {self.calls}"
        events = self.story.call(f"c{self.calls}", self.seconds, given=given)
        if self.random.random() < 0.1:
            events.reverse()  # stored in another order than published
        stored = [self.store(event) for event in events]
        if self.random.random() < 0.1:
            self.store(stored[-1])  # stored twice

    def interfere(self) -> None:
        """A user sends a message, resumes, mutes, or answers."""
        chance = self.random.random()
        if chance < 0.01 and not (self.paused or self.finished or self.stopped):
            self.append("message.acknowledged", message_id=f"msg-u{self.calls}", message_type="user_message")
        elif chance < 0.02 and self.paused and not self.stopped:
            self.paused = False
            self.append("sandbox.resumed", runtime="x")
        elif chance < 0.03 and not self.stopped:
            self.stopped = True
            self.append("sandbox.stopping", runtime="x", reason="user")
        elif chance < 0.04:
            self.append("monitor.rule_muted", rule="loop", until=self.now + timedelta(seconds=30))

    # --- the other services ----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Carry out commands, each once, unless the services are unavailable; some time after they were sent."""
        if self.unavailable or not self.pending or self.random.random() < 0.4:
            return
        needed, steering = self.pending.pop(0)
        if (steering.correlation, needed) in self.done or self.stopped:
            return
        self.done.add((steering.correlation, needed))
        getattr(self, f"_{needed.value}")(steering)

    def _message(self, steering: Any) -> None:
        about = {"message_id": steering.message, "message_type": "guardian_nudge"}
        self.append("message.queued", content_length=1, **about)
        if self.finished or self.random.random() < 0.1:
            self.append("message.expired", waited_ms=1, **about)
        else:
            self.append("message.acknowledged", **about)

    def _pause(self, _steering: Any) -> None:
        if self.random.random() < 0.1:
            self.append("sandbox.refused", runtime="x", command="spawner.pause_sandbox", reason="it can't")
        elif not self.paused:
            self.paused = True
            self.append("sandbox.paused", runtime="x")

    def _approval(self, steering: Any) -> None:
        self.append("approval.requested", approval_id=steering.approval, tool="continue")
        reason = self.random.choice([None, "do this"])
        match self.random.choice(["grant", "deny", "expire", "wait"]):
            case "grant":
                self.append("approval.granted", approval_id=steering.approval, reason=reason)
            case "deny":
                self.append("approval.denied", approval_id=steering.approval)
            case "expire":
                self.append("approval.expired", approval_id=steering.approval, outcome="denied")

    def _withdrawal(self, steering: Any) -> None:
        self.append("approval.expired", approval_id=steering.approval, outcome="withdrawn")

    def _resume(self, _steering: Any) -> None:
        if self.paused:
            self.paused = False
            self.append("sandbox.resumed", runtime="x")

    def _instruction(self, steering: Any) -> None:
        about = {"message_id": f"{steering.message}-i", "message_type": "user_message"}
        self.append("message.queued", content_length=1, **about)

    def _termination(self, steering: Any) -> None:
        self.stopped = True
        self.append("sandbox.stopping", runtime="x", reason=steering.rule)

    # --- the monitor -----------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Read what is in the stream, some of it; then, if all is read, act. It may be killed at any place."""
        amount = self.random.choice([1, 2, 5, 100])
        for event in self.stream[self.read : self.read + amount]:
            self.state = fold(self.state, event, self.rules)
            self.read += 1
        if self.state is None or self.read < len(self.stream):
            return
        try:
            self._conclude()
            self._intervene()
        except KilledError:
            self.restart()
        if self.read == len(self.stream) and self.random.random() < 0.05 and self.state is not None:
            self.snapshot = (*pack(Herd(self.read, [self.state]), "a"), self.read)

    def _conclude(self) -> None:
        assert self.state is not None
        came = outcome(self.state, self.rules)
        steering = self.state.steering
        if came is None or steering is None:
            return
        self.may_be_killed()
        event = self.append(
            "monitor.intervention_outcome",
            correlation_id=steering.correlation,
            outcome="obeyed" if came == "recovered" else came,
            recovered=came == "recovered" or None,
            evidence=[str(one) for one in steering.repeated] or None,
        )
        self.may_be_killed()
        self.state = fold_unchecked(self.state, event, self.rules)

    def _intervene(self) -> None:
        if self.state is None:
            return
        decision = steer(self.state, self.now, self.rules, IDS)
        if decision is not None and decision.steering is not None:
            self._decide(decision.steering)
        needed = command_to_send(self.state, self.now)
        if needed is None:
            return
        steering = self.state.steering
        assert steering is not None
        self.may_be_killed()
        self.commands[steering.correlation, needed] += 1
        self.pending.append((needed, steering))
        self.may_be_killed()
        self.state = after_command(self.state, needed, self.now)

    def _decide(self, steering: Any) -> None:
        assert self.state is not None
        self.may_be_killed()
        self.decided.append((steering, self.finished or self.stopped or self.paused))
        event = self.append(
            "monitor.intervention_decided",
            rule=steering.rule,
            step=steering.step,
            message_id=steering.message,
            correlation_id=steering.correlation,
            intervention_number=steering.number,
            message=steering.text,
            evidence=[str(one) for one in steering.evidence],
            pattern=steering.pattern,
            pattern_rule=steering.watched,
            approval_id=steering.approval,
        )
        self.may_be_killed()
        self.state = fold_unchecked(self.state, event, self.rules)

    def may_be_killed(self) -> None:
        """Now and then it is."""
        if self.random.random() < 0.02:
            raise KilledError

    def restart(self) -> None:
        """The next monitor restores the last snapshot, and reads the stream from there.

        It may have another number of partitions: then it reads from the earliest snapshot of those before.
        """
        self.state, self.read = None, 0
        if self.snapshot is None:
            return
        manifest, pieces, self.read = self.snapshot
        herd = unpack(manifest, pieces, self.rules)
        if self.random.random() < 0.5:
            [key], count = herd.live, self.random.choice([1, 3, 8, 64])
            earlier = Herd(max(0, self.read - self.random.randrange(30)))
            herd = merge_herds([earlier, herd], PartitionId(count, partition_of(*key, count)), self.rules)
        self.read = herd.position
        [self.state] = herd.live.values()

    def play(self) -> None:
        """All of it, and then the end of the sandbox."""
        begins = self.random.choice([0, 0, 15, 30])  # until then no monitor runs
        for turn in range(TURNS):
            self.seconds += self.random.choice([0.1, 1, 12])
            self.unavailable = self.unavailable if self.random.random() > 0.05 else not self.unavailable
            self.act()
            self.interfere()
            self.serve()
            if turn >= begins:
                self.follow()
        self.append("sandbox.terminated", runtime="x", reason="end")
        self.stopped = True
        for _ in range(200):
            self.follow()


def check(played: Played) -> None:
    """What holds of every history."""
    numbers = [steering.number for steering, _ in played.decided]
    assert numbers == list(range(1, len(numbers) + 1)), "each is decided once"
    assert not any(over for _, over in played.decided), "none to a finished, paused or stopping agent"
    correlations = [steering.correlation for steering, _ in played.decided]
    outcomes = Counter(
        event.data.correlation_id for event in played.stream if isinstance(event.data, MonitorInterventionOutcome)
    )
    assert outcomes == Counter(correlations), "exactly one outcome each"
    ids = {str(event.id) for event in played.stream}
    assert all(steering.evidence and {str(one) for one in steering.evidence} <= ids for steering, _ in played.decided)
    last: dict[tuple[str, str], SteeringStep] = {}
    for steering, _ in played.decided:
        assert played.highest != "observe"
        assert rank(steering.step) <= rank(played.highest)
        before = last.get((steering.watched, steering.pattern))
        allowed = 1 if before is None else rank(before) + 1
        assert rank(steering.step) <= allowed, "no step is skipped"
        last[steering.watched, steering.pattern] = steering.step


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_histories_have_one_outcome_each_and_skip_no_step(seeds: range, new_story: Any) -> None:
    """None is sent twice, or to an agent that has ended; each has one outcome, whatever happens to the services."""
    steps: Counter[str] = Counter()
    for seed in seeds:
        played = Played(seed, new_story)
        try:
            played.play()
            check(played)
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
        steps += Counter(steering.step for steering, _ in played.decided)
    assert {"nudge", "interrupt", "pause"} <= {*steps}
