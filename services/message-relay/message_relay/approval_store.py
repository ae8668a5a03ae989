"""The bucket of approvals. Each entry is updated by compare-and-set, so that only the first answer decides.

The bucket also has an entry for each question (what is requested), with the latest approval of that question. By this
entry, an attempt that requests the same as the previous attempt finds the previous approval.
"""

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydantic import BaseModel

from message_relay.approval import Approval, ApprovalRef, Requester, digest_of, settled
from message_relay.bucket_entries import read_entry, until_available, write_entry
from sandherd.bus.connection import Bus
from sandherd.contracts.streams import BUCKETS

_BUCKET: Final = "approvals"
_STREAM: Final = f"KV_{_BUCKET}"
_SUBJECT: Final = f"$KV.{_BUCKET}"
_ALL: Final = f"{_SUBJECT}.*.*.*"
DECISION_TTL: Final = "86400s"
"""How long a user's decision stays stored, so that users who answer again are informed."""
EXPIRED_TTL: Final = "600s"
"""How long an approval stays stored that expired or was withdrawn. An agent can cause any number of them."""
MAX_FILL: Final = 0.75
"""The share of the bucket's maximum size that new requests may use; the rest is for decisions."""
_USED_SHARE_SECONDS: Final = 1.0
"""Seconds after which the used share of the bucket is measured again."""

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _ValueAtRevision(Generic[ModelT]):
    value: ModelT
    revision: int


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """An approval as it was read or written, and its revision in the bucket."""

    approval: Approval
    revision: int


@dataclass(frozen=True, slots=True)
class LatestAttempt:
    """The entry of a question: its latest approval, and the revision of the entry; None and 0 if there is no entry."""

    requester: Requester | None
    revision: int


class ApprovalStore:
    """Reads and writes approvals. Retries without limit while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._max_bytes = next(one.max_bytes for one in BUCKETS if one.name == _BUCKET)
        self._used_share, self._used_share_until = 0.0, 0.0
        """The used share as measured, plus own writes since, and the monotonic second of the next measurement."""

    def open_in(self, project: str, sandbox: str) -> int:
        """The number of approvals of a sandbox that wait for an answer, as they were last read or written here."""
        return len(self._open.get((project, sandbox), ()))

    def open_in_project(self, project: str) -> int:
        """The number of approvals of all sandboxes of a project that wait for an answer, as in `open_in`."""
        return sum(len(subjects) for (owner, _), subjects in self._open.items() if owner == project)

    async def is_full(self) -> bool:
        """Whether new requests have used up their share of the bucket."""
        if time.monotonic() >= self._used_share_until:
            info = await until_available(_BUCKET, lambda: self._bus.js.stream_info(_STREAM))
            self._max_bytes = info.config.max_bytes or self._max_bytes
            self._used_share, self._used_share_until = (
                info.state.bytes / self._max_bytes,
                time.monotonic() + _USED_SHARE_SECONDS,
            )
        return self._used_share >= MAX_FILL

    def _count_open(self, subject: str, approval: Approval) -> None:
        key = approval.project, approval.sandbox
        if approval.decision is None:
            self._open[key].add(subject)
        elif key in self._open:
            self._open[key].discard(subject)
            if not self._open[key]:
                del self._open[key]

    async def load(self, project: str, sandbox: str, approval_id: str) -> StoredApproval | None:
        """The approval of this id, or None."""
        return await self.at(_subject_of(project, sandbox, approval_id))

    async def at(self, subject: str) -> StoredApproval | None:
        """The approval on this subject of the bucket, or None."""
        found = await self._read(subject, Approval)
        if found is None:
            return None
        self._count_open(subject, found.value)
        return StoredApproval(found.value, found.revision)

    async def latest(self, project: str, ref: ApprovalRef, before: ApprovalRef | None = None) -> StoredApproval | None:
        """The latest approval that has replaced the approval `ref`, or that approval if none has.

        With `before`, the search ends at the approval that `before` has replaced, or would replace.
        """
        stored = await self.load(project, ref.sandbox, ref.approval_id)
        while stored is not None and stored.approval.next is not None and stored.approval.next != before:
            stored = await self.load(project, stored.approval.next.sandbox, stored.approval.next.approval_id)
        return stored

    async def write(self, approval: Approval, over: StoredApproval | None) -> StoredApproval | None:
        """Write an approval if the entry is still `over`, or as a new entry.

        Returns None if another write came first, or if this write was stored but its acknowledgement was lost. If the
        decision is published and no answer waits, the entry is reduced to the decision, and expires.
        """
        subject = _subject_of(approval.project, approval.sandbox, approval.approval_id)
        ttl = _ttl_of(approval) if approval.said and not approval.waits else None
        entry = approval if ttl is None else settled(approval)
        revision = await self._write(subject, entry, over.revision if over else 0, ttl)
        if revision is None:
            return None
        self._count_open(subject, approval)
        return StoredApproval(approval, revision)

    async def subjects(self) -> list[str]:
        """The subjects of all approvals."""
        info = await until_available(_BUCKET, lambda: self._bus.js.stream_info(_STREAM, subjects_filter=_ALL))
        return list(info.state.subjects or {})

    async def latest_attempt(self, approval: Approval) -> LatestAttempt:
        """The entry of an approval's question, with the latest approval of that question."""
        found = await self._read(_question_subject(approval), Requester)
        return LatestAttempt(None, 0) if found is None else LatestAttempt(found.value, found.revision)

    async def record_latest(self, approval: Approval, over: LatestAttempt) -> bool:
        """Record that this approval is the last one of its question. Returns False if another write came first."""
        done = not approval.waits
        requester = Requester(
            sandbox=approval.sandbox, approval_id=approval.approval_id, attempt=approval.attempt, over=done
        )
        ttl = _ttl_of(approval) if done else None
        return await self._write(_question_subject(approval), requester, over.revision, ttl) is not None

    async def expire_entry(self, approval: Approval) -> None:
        """Let the entry of an approval's question expire, because the approval is of no further use."""
        if approval.question is None or approval.next is not None:
            return
        latest = await self.latest_attempt(approval)
        if latest.requester is not None and latest.requester.ref == approval.ref and not latest.requester.over:
            over = latest.requester.model_copy(update={"over": True})
            await self._write(_question_subject(approval), over, latest.revision, _ttl_of(approval))

    async def _read(self, subject: str, model: type[ModelT]) -> _ValueAtRevision[ModelT] | None:
        entry = await read_entry(self._bus, _BUCKET, subject, model)
        return None if entry is None or entry.value is None else _ValueAtRevision(entry.value, entry.revision)

    async def _write(self, subject: str, value: BaseModel, over: int, ttl: str | None) -> int | None:
        payload = value.model_dump_json(exclude_none=True).encode()
        self._used_share += len(payload) / self._max_bytes
        return await write_entry(self._bus, _BUCKET, subject, payload, over=over, ttl=ttl)


def _ttl_of(approval: Approval) -> str:
    """How long the entry of a settled approval stays stored."""
    return DECISION_TTL if approval.decision is None or approval.decision.answer else EXPIRED_TTL


def _subject_of(project: str, sandbox: str, approval_id: str) -> str:
    return f"{_SUBJECT}.{project}.{sandbox}.{digest_of(approval_id)}"


def _question_subject(approval: Approval) -> str:
    return f"{_SUBJECT}.{approval.project}.{approval.task}.question.{approval.question}"
