"""Files in and out: each transfer is done once, however often it is asked for, and its answer is kept a while."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests.access import FileRead, FileWritten
from sandherd.contracts.requests.worker import WorkerDownload, WorkerUpload
from sandherd_worker.access.beneath import Beneath
from sandherd_worker.access.pieces import Exchange
from sandherd_worker.access.putting import Putting
from sandherd_worker.access.taking import Taking
from sandherd_worker.parts import Parts
from sandherd_worker.tasks import end_tasks

MOST_AT_ONCE: Final = 8
_MOST_KEPT: Final = 200
_KEPT_SECONDS: Final = 600.0
_KEPT_BYTES: Final = 2 * 1024 * 1024
"""What the bytes in kept answers may weigh together."""


@dataclass
class Progress:
    """How far a transfer is."""

    kind: Literal["file", "folder"] = "file"
    size: int = 0
    moved: int = 0

    def move(self, so_far: int) -> None:
        """So many bytes have moved by now."""
        self.moved = so_far


@dataclass
class _Transfer:
    asked: dict[str, Any]
    working: "asyncio.Task[Any]"
    progress: Progress
    ended_at: float | None = None
    weight: int = field(default=0)


class Transfers:
    """Answers what is asked of files. Raises `ContractError` as its answer, and the same each time."""

    def __init__(self, parts: Parts, beneath: Beneath) -> None:
        exchange = Exchange(parts.who, parts.line)
        self._putting = Putting(parts, beneath, exchange)
        self._taking = Taking(parts, beneath, exchange)
        self._known: dict[str, _Transfer] = {}
        """In the order in which they were begun."""

    async def upload(self, asked: WorkerUpload) -> FileWritten:
        """Put a file or folder into the work tree."""
        transfer = self._find(asked, lambda progress: self._putting.put(asked, progress))
        answer = await self._answer(transfer, asked.wait_seconds)
        if isinstance(answer, FileWritten):
            return answer
        size = len(asked.data or b"") if asked.artifact is None else asked.artifact.size
        moved = min(size, transfer.progress.moved)
        return FileWritten(path=asked.path, size=size, sha256=asked.sha256, files=0, done=False, moved=moved)

    async def download(self, asked: WorkerDownload) -> FileRead:
        """Take a file or folder out of the work tree."""
        transfer = self._find(asked, lambda progress: self._taking.take(asked, progress))
        answer = await self._answer(transfer, asked.wait_seconds)
        if isinstance(answer, FileRead):
            return answer
        far = transfer.progress
        return FileRead(path=asked.path, kind=far.kind, size=far.size, done=False, moved=far.moved)

    async def close(self) -> None:
        """Break off what is on its way; nothing of it is seen."""
        await end_tasks([transfer.working for transfer in self._known.values()])

    def _find(
        self, asked: WorkerUpload | WorkerDownload, work: Callable[[Progress], Awaitable[BaseModel]]
    ) -> _Transfer:
        fields = {"kind": type(asked), **asked.model_dump(exclude={"wait_seconds", "data", "max_bytes"})}
        known = self._known.get(asked.transfer)
        if known is None:
            return self._begin(asked.transfer, fields, work)
        if known.asked != fields:
            raise ContractError(Code.CONFLICT, f"{asked.transfer} is another transfer", field="transfer")
        return known

    def _begin(self, name: str, fields: dict[str, Any], work: Callable[[Progress], Awaitable[BaseModel]]) -> _Transfer:
        self._forget()
        if sum(transfer.ended_at is None for transfer in self._known.values()) >= MOST_AT_ONCE:
            raise ContractError(
                Code.UNAVAILABLE, f"{MOST_AT_ONCE} transfers are on their way, as many as may be", remedy="ask again"
            )
        progress = Progress()
        working = asyncio.ensure_future(work(progress))
        transfer = self._known[name] = _Transfer(fields, working, progress)
        working.add_done_callback(lambda _: self._end(name, transfer))
        return transfer

    async def _answer(self, transfer: _Transfer, seconds: float) -> BaseModel | None:
        """What came of it; None if it goes on. Raises what it raised."""
        done, _ = await asyncio.wait([transfer.working], timeout=seconds)
        if not done:
            return None
        if transfer.working.cancelled():
            raise ContractError(Code.UNAVAILABLE, "the sandbox is ending")
        answer: BaseModel = transfer.working.result()
        return answer

    def _end(self, name: str, transfer: _Transfer) -> None:
        """Keep what came of it; but what could not be done just now is done anew when it is asked for again."""
        transfer.ended_at = asyncio.get_running_loop().time()
        working = transfer.working
        error = None if working.cancelled() else working.exception()
        if isinstance(error, ContractError) and error.problem.code is Code.UNAVAILABLE:
            self._known.pop(name, None)
        answer = None if working.cancelled() or error else working.result()
        transfer.weight = len(answer.data or b"") if isinstance(answer, FileRead) else 0

    def _forget(self) -> None:
        """Let the oldest answers go: those that are too old, too many, or too heavy together."""
        now = asyncio.get_running_loop().time()
        ended = [name for name, transfer in self._known.items() if transfer.ended_at is not None]
        weight = sum(transfer.weight for transfer in self._known.values())
        for index, name in enumerate(ended):
            transfer = self._known[name]
            old = transfer.ended_at is not None and transfer.ended_at + _KEPT_SECONDS < now
            if old or weight > _KEPT_BYTES or len(ended) - index >= _MOST_KEPT:
                weight -= transfer.weight
                del self._known[name]
