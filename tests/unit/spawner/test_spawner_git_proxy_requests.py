"""Requests to the git proxy whose sandbox, branch or quota changes while they are received."""

import base64
from collections.abc import Callable, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.repositories import Repository
from sandherd.contracts.states import TASK_ENDED, SandboxState, TaskState
from spawner.git_proxy.push_protocol import (
    pkt_line,
)
from spawner.git_proxy.pushes import PushReceiver
from spawner.git_proxy.routes import Service
from spawner.git_proxy.server import GitProxy
from spawner.records.base_record import StoreUnavailableError
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.sandboxes.git_proxy_access import ProxyTokens
from tests.unit.spawner.test_spawner_branch_transitions import BUNDLE, OTHER, branch

TOKENS = ProxyTokens.of("seed")


class _Herd:
    """The records that the proxy reads, of one sandbox at work on a branch."""

    def __init__(self, folder: Path) -> None:
        spec = TaskSpec(
            text="x", harness=CommandHarness(argv=["true"]), repository=Repository(url="https://h/a/b", git_proxy=True)
        )
        self.task = SimpleNamespace(
            task="task-1", sandbox="sbx-1", branch="br-1", whole_spec=spec, state=TaskState.RUNNING
        )
        self.branch = branch(received=(), url="https://h/a/b")
        self.live, self.fetches, self.artifacts = Mock(), AsyncMock(), AsyncMock()
        sandbox = SimpleNamespace(sandbox="sbx-1", state=SandboxState.RUNNING)
        self.live.sandboxes.load = AsyncMock(return_value=SimpleNamespace(record=sandbox))
        self.live.load_task = AsyncMock(return_value=SimpleNamespace(record=self.task))
        self.live.branches.load = AsyncMock(side_effect=lambda _: SimpleNamespace(record=self.branch))
        self.live.change_branch = AsyncMock(return_value=None)
        pushes = PushReceiver(self.live, self.artifacts, folder)
        self.proxy = GitProxy(self.live, TOKENS, self.fetches, pushes, max_push=1000)

    async def post(self, service: Service, parts: list[bytes], meanwhile: Callable[[], None]) -> list[Any]:
        """What is sent to a client whose sandbox or branch changes while it sends the last part."""
        pair = base64.b64encode(f"sandbox:{TOKENS.token('p1', 'sbx-1')}".encode())
        headers = [(b"authorization", b"Basic " + pair), (b"content-type", f"application/x-{service}-request".encode())]
        scope = {"method": "POST", "raw_path": f"/p1/sbx-1/{service}".encode(), "query_string": b"", "headers": headers}
        waiting, sent = list(parts), list[Any]()

        async def receive() -> MutableMapping[str, Any]:
            part = waiting.pop(0)
            if not waiting:
                meanwhile()
            return {"type": "http.request", "body": part, "more_body": bool(waiting)}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.proxy(scope, receive, send)
        return sent


@pytest.mark.parametrize("service", list(Service))
async def test_request_of_a_sandbox_that_ends_meanwhile_has_no_effect(service: Service, tmp_path: Path) -> None:
    """A client decides how long its body takes, so the records are read again at the end of the body."""
    herd = _Herd(tmp_path)
    head = pkt_line(f"{herd.branch.commit} {OTHER} refs/heads/{herd.branch.branch}\0report-status".encode()) + b"0000"
    ended = next(iter(TASK_ENDED))
    sent = await herd.post(service, [head, b"PACK"], lambda: setattr(herd.task, "state", ended))
    assert sent[0]["status"] == 403
    herd.fetches.objects.assert_not_called()
    herd.artifacts.store.assert_not_called()
    herd.live.change_branch.assert_not_called()


async def test_push_to_a_branch_that_moves_meanwhile_is_refused(tmp_path: Path) -> None:
    """It is refused before its pack is stored, with a report and an event."""
    herd = _Herd(tmp_path)
    head = pkt_line(f"{herd.branch.commit} {OTHER} refs/heads/{herd.branch.branch}\0report-status".encode()) + b"0000"
    moved = branch(received=(), url="https://h/a/b", commit="d" * 40)
    sent = await herd.post(Service.PUSH, [head, b"PACK"], lambda: setattr(herd, "branch", moved))
    assert b"fetch first" in sent[1]["body"]
    herd.artifacts.store.assert_not_called()
    herd.live.change_branch.assert_awaited_once()


async def test_two_pushes_at_once_share_the_quota_of_bytes(tmp_path: Path) -> None:
    """The second one gets only the bytes that the first one can't use: both together do not exceed the quota."""
    herd = _Herd(tmp_path)
    herd.proxy._max_push = 2**31
    left: list[int] = []
    await herd.post(Service.PUSH, [b"0000"], lambda: left.append(herd.proxy._quota.left("p1.sbx-1", 0)))
    assert left == [0]
    assert herd.proxy._quota.left("p1.sbx-1", 0) == 2**30 - 4


async def test_bundle_that_cannot_be_deleted_is_no_unknown_error() -> None:
    """The push has succeeded, so a broker that does not respond to the deletion is ignored."""
    bus = Mock()
    bus.js.purge_stream = AsyncMock(side_effect=TimeoutError)
    with pytest.raises(StoreUnavailableError):
        await BranchArtifacts(bus).delete(BUNDLE)
