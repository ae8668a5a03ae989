"""Every write of every spawner, in the order of the broker; the invariants are checked at each write."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sandherd.contracts.states import (
    SANDBOX_TRANSITIONS,
    TASK_ENDED,
    TASK_TRANSITIONS,
    SandboxState,
    TaskState,
)
from spawner.pool.warm_record import WarmRecord
from spawner.records.base_record import Record
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord


class BrokenRuleError(AssertionError):
    """An invariant was violated."""


@dataclass(frozen=True)
class Write:
    """One write that the broker has stored. `value` is None if the key was removed."""

    bucket: str
    key: str
    revision: int
    value: bytes | None


@dataclass(frozen=True)
class Limits:
    """The limits of the number of live sandboxes."""

    total: int
    project: int
    runtimes: Mapping[str, int]


@dataclass
class Journal:
    """The records of the broker, their history, and the published events."""

    limits: Limits
    stale: int = 0
    """The number of slow acts: during each, a sandbox that was admitted earlier may be created."""
    writes: list[Write] = field(default_factory=list)
    tasks: dict[str, TaskRecord] = field(default_factory=dict)
    sandboxes: dict[str, SandboxRecord] = field(default_factory=dict)
    granted: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """For each public key, its owner and the time at which its token expires."""
    pool: dict[str, WarmRecord] = field(default_factory=dict)
    past_tasks: dict[str, TaskRecord] = field(default_factory=dict)
    """The last versions of purged task records."""
    past_sandboxes: dict[str, SandboxRecord] = field(default_factory=dict)
    published: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    """Events, by source and sequence."""
    broken: list[str] = field(default_factory=list)

    def note(self, subject: str, payload: bytes, headers: Mapping[str, str], answer: bytes) -> None:
        """Note one request: a write of a record, an event, or something else."""
        if subject.startswith("$KV."):
            ack = json.loads(answer)
            if "error" not in ack:
                self._write(subject, payload, headers, ack["seq"])
        elif subject.startswith("sandherd.v1.event."):
            self._event(json.loads(payload))

    def check(self) -> None:
        """Raise `BrokenRuleError` with all violations so far."""
        if self.broken:
            raise BrokenRuleError("; ".join(self.broken))

    def live(self) -> Iterator[SandboxRecord]:
        """The sandboxes that have not ended."""
        return (record for record in self.sandboxes.values() if not record.ended)

    # --- records -------------------------------------------------------------------------------------------------

    def _write(self, subject: str, payload: bytes, headers: Mapping[str, str], revision: int) -> None:
        _, bucket, key = subject.split(".", 2)
        removed = headers.get("KV-Operation") in {"DEL", "PURGE"}
        self.writes.append(Write(bucket, key, revision, None if removed else payload))
        match bucket:
            case "tasks" | "sandboxes" if removed:
                self._removed(bucket, key)
            case "tasks":
                task = TaskRecord.model_validate_json(payload)
                self._task(key, self.tasks.get(key), task)
                self.tasks[key] = task
            case "sandboxes":
                sandbox = SandboxRecord.model_validate_json(payload)
                self._sandbox(key, self.sandboxes.get(key), sandbox)
                self.sandboxes[key] = sandbox
            case "pool":
                self._pool(key, None if removed else WarmRecord.model_validate_json(payload))
            case _:
                pass

    def _pool(self, key: str, after: WarmRecord | None) -> None:
        before = self.pool.pop(key, None)
        if after is not None:
            self.pool[key] = after
        claimed = before.claimed_by if before else None
        self._require(not claimed or not after or after.claimed_by == claimed, f"{key} was claimed twice")

    def _removed(self, bucket: str, key: str) -> None:
        if bucket == "tasks":
            record = self.tasks.pop(key)
            self.past_tasks[key] = record
            self._require(record.ended, f"{key} was removed while it was {record.state}")
        else:
            sandbox = self.sandboxes.pop(key)
            self.past_sandboxes[key] = sandbox
            self._require(sandbox.ended, f"{key} was removed while it was {sandbox.state}")

    def _task(self, key: str, before: TaskRecord | None, after: TaskRecord) -> None:
        self._require(after.attempt <= max(after.max_attempts, 1), f"{key}: attempt {after.attempt} is too many")
        if before is None:
            self._require(after.state is TaskState.PENDING, f"{key} began {after.state}")
            return
        self._require(after.life == before.life, f"{key} was written over by another task")
        self._require(after.scheduled_by >= before.scheduled_by, f"{key}: an old scheduler wrote it")
        self._require(_task_may(before, after), f"{key}: {before.state} → {after.state}, attempts "
                      f"{before.attempt} → {after.attempt}")  # fmt: skip

    def _sandbox(self, key: str, before: SandboxRecord | None, after: SandboxRecord) -> None:
        self.granted.update({worker.public_key: (key, worker.expires_at) for worker in after.keys})
        if before is None:
            self._require(after.state is SandboxState.REQUESTED, f"{key} began {after.state}")
            self._require(key not in self.past_sandboxes, f"{key} was made once more")
            self._begun(key, after)
            units = [record.runtime_unit for record in self.sandboxes.values()]
            self._require(after.runtime_unit not in units, f"{key} is in {after.runtime_unit}, as another was")
            return
        self._require(after.led_by >= before.led_by, f"{key}: an old keeper wrote it")
        self._require(_sandbox_may(before.state, after.state), f"{key}: {before.state} → {after.state}")
        self._require((before.task, before.attempt) == (after.task, after.attempt), f"{key} changed its task")

    def _begun(self, key: str, new: SandboxRecord) -> None:
        """Check that the sandbox before has ended, and that there is capacity."""
        others = [record for record in self.live() if record.key != key]
        if new.task:
            same = [record.sandbox for record in others if (record.project, record.task) == (new.project, new.task)]
            self._require(not same, f"{key} of attempt {new.attempt} was begun while {same} had not ended")
        for kind, count, limit in self._counts(new, others):
            self._require(count < limit + self.stale, f"{key} is one more than {limit} {kind}")

    def _counts(self, new: SandboxRecord, others: list[SandboxRecord]) -> list[tuple[str, int, int]]:
        of_project = sum(record.project == new.project for record in others)
        of_runtime = sum(record.runtime == new.runtime for record in others)
        in_runtime = self.limits.runtimes.get(new.runtime, self.limits.total)
        return [
            ("in all", len(others), self.limits.total),
            ("of the project", of_project, self.limits.project),
            ("in the runtime", of_runtime, in_runtime),
        ]

    # --- events --------------------------------------------------------------------------------------------------

    def _event(self, event: dict[str, Any]) -> None:
        known = self.published[event["source"]].setdefault(event["sequence"], event)
        self._require(known["id"] == event["id"], f"{event['source']} published two events as {event['sequence']}")

    def check_events(self) -> None:
        """Check that every source counts from 1 without a gap, and has published all that its record states."""
        for source, numbers in self.published.items():
            self._require(sorted(numbers) == list(range(1, len(numbers) + 1)), f"{source} published {sorted(numbers)}")
        records: list[Record] = [*self.tasks.values(), *self.sandboxes.values()]
        records += [*self.past_tasks.values(), *self.past_sandboxes.values()]
        for record in records:
            self._require(not record.outbox, f"{record.key} has unpublished events")
            received = len(self.published.get(record.source, {}))
            self._require(
                received == record.sequence, f"{record.key} has published {record.sequence}, received: {received}"
            )
        self.check()

    def types(self, source: str) -> list[str]:
        """The types of a source's events, in order."""
        numbers = self.published.get(source, {})
        return [numbers[number]["type"] for number in sorted(numbers)]

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)


def _task_may(before: TaskRecord, after: TaskRecord) -> bool:
    """Whether the table allows this change. A failed attempt that is retried is two transitions in one write."""
    if before.state is after.state and before.attempt == after.attempt:
        return True
    if after.state is not TaskState.PENDING:
        return (before.state, after.state) in TASK_TRANSITIONS and before.attempt == after.attempt
    if after.attempt != before.attempt + 1:
        return False
    if before.state in TASK_ENDED:
        return (before.state, after.state) in TASK_TRANSITIONS
    return {(before.state, TaskState.FAILED), (TaskState.FAILED, TaskState.PENDING)} <= TASK_TRANSITIONS


def _sandbox_may(before: SandboxState, after: SandboxState) -> bool:
    """Whether the table allows this change, possibly through one state in between: a fast worker publishes first."""
    if before is after or (before, after) in SANDBOX_TRANSITIONS:
        return True
    return before is SandboxState.REQUESTED and after is SandboxState.RUNNING
