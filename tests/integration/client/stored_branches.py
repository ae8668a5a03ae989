"""A spawner's branches in memory, with artifacts, for tests of the client against a real broker."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.requests import (
    BranchList,
    BranchView,
    DeleteBranch,
    DownloadChunk,
    ListBranches,
    MergeBranch,
    OpenPullRequest,
    PushBranch,
    UploadChunk,
)
from sandherd.contracts.requests.access import ArtifactPiece, ChunkStored
from sandherd.contracts.states import BranchState
from sandherd.contracts.subjects import Principal
from tests.integration.client.conftest import SANDBOX, Neighbours

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ID, TASK = "br-0f3a5c6f2f9f6f3a1b2c", "task-01kahc5x3tf8b9n2m4r6v8w0ya"
URL = "https://git.example.org/demo/mathematics"


class StoredBranches:
    """Replies to all requests about branches and artifacts. `on_push` and `on_delete` change a view."""

    def __init__(self) -> None:
        self.views: list[BranchView] = []
        self.artifacts: dict[str, bytes] = {}
        self.uploaded: dict[tuple[str, str], dict[int, bytes]] = {}
        self.pushes: list[PushBranch] = []
        self.deletions: list[DeleteBranch] = []
        self.pull_requests: list[OpenPullRequest] = []
        self.merges: list[MergeBranch] = []
        self.on_pull_request: Callable[[BranchView], BranchView] = lambda view: view
        self.on_merge: Callable[[BranchView], BranchView] = lambda view: view
        self.on_push: Callable[[BranchView], BranchView] = lambda view: view
        self.on_delete: Callable[[BranchView], BranchView] = lambda view: view

    async def answer_all(self, neighbours: Neighbours) -> None:
        """Take the place of the spawner of these branches."""
        answers: dict[Any, Any] = {
            ListBranches: self.found, PushBranch: self.push, DeleteBranch: self.delete,
            OpenPullRequest: self.open_pull_request, MergeBranch: self.merge,
            DownloadChunk: self.chunk, UploadChunk: self.store,
        }  # fmt: skip
        for request, give in answers.items():
            await neighbours.answer(Principal.SPAWNER, request, give)

    def found(self, requested: ListBranches) -> BranchList:
        """Find branches as the spawner chooses them."""
        named = [view for view in self.views if requested.branch in {None, view.branch, view.id}]
        chosen = [view for view in named if requested.task is None or requested.task in view.tasks]
        return BranchList(branches=[view for view in chosen if not requested.state or view.state in requested.state])

    def push(self, requested: PushBranch) -> BranchView:
        self.pushes.append(requested)
        return self.change(requested.branch, self.on_push)

    def open_pull_request(self, requested: OpenPullRequest) -> BranchView:
        self.pull_requests.append(requested)
        return self.change(requested.branch, self.on_pull_request)

    def merge(self, requested: MergeBranch) -> BranchView:
        self.merges.append(requested)
        return self.change(requested.branch, self.on_merge)

    def delete(self, requested: DeleteBranch) -> BranchView:
        self.deletions.append(requested)
        return self.change(requested.branch, self.on_delete)

    def change(self, branch: str, by: Callable[[BranchView], BranchView]) -> BranchView:
        """Replace a view."""
        [at] = [number for number, view in enumerate(self.views) if view.id == branch]
        self.views[at] = by(self.views[at])
        return self.views[at]

    def artifact(self, name: str, content: bytes, owner: str = SANDBOX) -> ArtifactRef:
        """Store an artifact of one chunk."""
        self.artifacts[name] = content
        return ArtifactRef(
            artifact=name,
            subject=f"sandherd.v1.artifact.default.{owner}.{name}",
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            chunks=1,
            media_type="application/octet-stream",
        )

    def chunk(self, requested: DownloadChunk) -> ArtifactPiece:
        return ArtifactPiece(index=0, data=self.artifacts[requested.artifact], after=1)

    def store(self, requested: UploadChunk) -> ChunkStored:
        self.uploaded.setdefault((requested.sandbox, requested.artifact), {})[requested.index] = requested.data
        return ChunkStored(index=requested.index)

    def content(self, reference: ArtifactRef) -> bytes:
        """The content that was uploaded as this artifact."""
        *_, owner, name = reference.subject.split(".")
        chunks = self.uploaded[owner, name]
        return b"".join(chunks[index] for index in sorted(chunks))


def a_branch(**fields: Any) -> BranchView:
    """A pushed branch of one task."""
    known: dict[str, Any] = {
        "project": "default", "id": ID, "repository": URL, "branch": "feature/fix-it", "base": "main",
        "state": BranchState.LIVE, "base_commit": "a" * 40, "commit": "b" * 40, "pushed_commit": "b" * 40,
        "tasks": [TASK], "created_at": NOW, "updated_at": NOW, "commits": 2, "files_changed": 3, "additions": 34,
        "deletions": 5,
    }  # fmt: skip
    return BranchView(**(known | fields))
