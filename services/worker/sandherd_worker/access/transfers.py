"""Transfers of files to and from the sandbox. A repeated request gets the cached reply of its transfer."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests.access import FileRead, FileWritten
from sandherd.contracts.requests.worker import WorkerDownload, WorkerUpload
from sandherd_worker.access.artifact_client import ArtifactClient, TransferProgress
from sandherd_worker.access.download import Downloads
from sandherd_worker.access.safe_paths import WorkTreePaths
from sandherd_worker.access.upload import Uploads
from sandherd_worker.worker_resources import WorkerResources

MAX_CONCURRENT: Final = 8
_MAX_CACHED: Final = 200
_CACHE_SECONDS: Final = 600.0
_CACHE_BYTES: Final = 2 * 1024 * 1024
"""Maximum total size of the content in cached replies, in bytes."""


@dataclass
class _Transfer:
    request: dict[str, Any]
    task: "asyncio.Task[Any]"
    progress: TransferProgress
    ended_at: float | None = None
    content_bytes: int = field(default=0)


class Transfers:
    """Handles requests about files. Raises `ContractError`, also each time a failed request is repeated."""

    def __init__(self, resources: WorkerResources, tree: WorkTreePaths) -> None:
        artifacts = ArtifactClient(resources.assignment, resources.line)
        self._uploads = Uploads(resources, tree, artifacts)
        self._downloads = Downloads(resources, tree, artifacts)
        self._known: dict[str, _Transfer] = {}
        """The transfers, in the order in which they were started."""

    async def upload(self, request: WorkerUpload) -> FileWritten:
        """Write a file or folder into the work tree."""
        transfer = self._find(request, lambda progress: self._uploads.perform(request, progress))
        reply = await self._wait_result(transfer, request.wait_seconds)
        if isinstance(reply, FileWritten):
            return reply
        size = len(request.data or b"") if request.artifact is None else request.artifact.size
        moved = min(size, transfer.progress.moved)
        return FileWritten(path=request.path, size=size, sha256=request.sha256, files=0, done=False, moved=moved)

    async def download(self, request: WorkerDownload) -> FileRead:
        """Read a file or folder from the work tree."""
        transfer = self._find(request, lambda progress: self._downloads.perform(request, progress))
        reply = await self._wait_result(transfer, request.wait_seconds)
        if isinstance(reply, FileRead):
            return reply
        progress = transfer.progress
        return FileRead(path=request.path, kind=progress.kind, size=progress.size, done=False, moved=progress.moved)

    async def close(self) -> None:
        """Cancel running transfers. Their incomplete files do not become visible."""
        await cancel_and_wait([transfer.task for transfer in self._known.values()], again_after=SHORT_CLEANUP_SECONDS)

    def _find(
        self, request: WorkerUpload | WorkerDownload, work: Callable[[TransferProgress], Awaitable[BaseModel]]
    ) -> _Transfer:
        fields = {"kind": type(request), **request.model_dump(exclude={"wait_seconds", "data", "max_bytes"})}
        found = self._known.get(request.transfer)
        if found is None:
            return self._start(request.transfer, fields, work)
        if found.request != fields:
            raise ContractError(Code.CONFLICT, f"{request.transfer} is another transfer", field="transfer")
        return found

    def _start(
        self, name: str, fields: dict[str, Any], work: Callable[[TransferProgress], Awaitable[BaseModel]]
    ) -> _Transfer:
        self._evict()
        if sum(transfer.ended_at is None for transfer in self._known.values()) >= MAX_CONCURRENT:
            raise ContractError(
                Code.UNAVAILABLE, f"{MAX_CONCURRENT} transfers are running, which is the limit", remedy="retry"
            )
        progress = TransferProgress()
        task = asyncio.ensure_future(work(progress))
        transfer = self._known[name] = _Transfer(fields, task, progress)
        task.add_done_callback(lambda _: self._end(name, transfer))
        return transfer

    async def _wait_result(self, transfer: _Transfer, seconds: float) -> BaseModel | None:
        """The result; None if the transfer still runs. Raises the error of the transfer."""
        done, _ = await asyncio.wait([transfer.task], timeout=seconds)
        if not done:
            return None
        if transfer.task.cancelled():
            raise ContractError(Code.UNAVAILABLE, "the sandbox is ending")
        reply: BaseModel = transfer.task.result()
        return reply

    def _end(self, name: str, transfer: _Transfer) -> None:
        """Cache the result, but not the error `unavailable`, so that a repeated request retries the transfer."""
        transfer.ended_at = asyncio.get_running_loop().time()
        task = transfer.task
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ContractError) and error.problem.code is Code.UNAVAILABLE:
            self._known.pop(name, None)
        reply = None if task.cancelled() or error else task.result()
        transfer.content_bytes = len(reply.data or b"") if isinstance(reply, FileRead) else 0

    def _evict(self) -> None:
        """Delete cached replies, oldest first: those that are too old, too many, or too large together."""
        now = asyncio.get_running_loop().time()
        ended = [name for name, transfer in self._known.items() if transfer.ended_at is not None]
        content_bytes = sum(transfer.content_bytes for transfer in self._known.values())
        for index, name in enumerate(ended):
            transfer = self._known[name]
            old = transfer.ended_at is not None and transfer.ended_at + _CACHE_SECONDS < now
            if old or content_bytes > _CACHE_BYTES or len(ended) - index >= _MAX_CACHED:
                content_bytes -= transfer.content_bytes
                del self._known[name]
