"""A worker's request for its peers, on a real broker."""

import pytest

from sandherd.bus.connection import BusError
from sandherd.contracts.requests import ListPeers
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.played import access_handlers, make_record


async def test_worker_lists_peers_of_its_project_only(herd: Broker) -> None:
    """A worker gets living peers of its project, also one by name; it can't request in another's name or project."""
    async with access_handlers(herd) as live, herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker:
        for name in ("sbx-1", "sbx-2", "sbx-3"):
            await make_record(live, name, task=f"task-of-{name}")
        await make_record(live, "sbx-4", task="task-4", state=SandboxState.TERMINATED)
        found = await worker.ask(ListPeers(), "p1", sandbox="sbx-1")
        assert {peer.sandbox for peer in found.peers} == {"sbx-2", "sbx-3"}
        one = await worker.ask(ListPeers(sandbox="sbx-3"), "p1", sandbox="sbx-1")
        assert [(peer.sandbox, peer.task) for peer in one.peers] == [("sbx-3", "task-of-sbx-3")]
        assert not (await worker.ask(ListPeers(sandbox="sbx-4"), "p1", sandbox="sbx-1")).peers
        for project, sandbox in (("p1", "sbx-2"), ("p2", "sbx-1")):
            with pytest.raises(BusError):
                await worker.ask(ListPeers(), project, sandbox=sandbox, timeout=0.2)
        async with herd.bus(Principal.WORKER, project="p2", sandbox="sbx-9") as stranger:
            assert not (await stranger.ask(ListPeers(), "p2", sandbox="sbx-9")).peers
