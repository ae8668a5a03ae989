"""The other sandboxes of a sandbox's project, with only the fields that an agent may see."""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import ListPeers, Peer, PeerList, SandboxView
from sandherd.contracts.states import SANDBOX_ENDING
from sandherd.service.service import IncomingRequest
from spawner.live_state import LiveState

MAX_PEERS: Final = 100
_MAX_TEXT_LENGTH: Final = 200


class Peers:
    """Handles the request `spawner.peers`. Its subject names the requesting sandbox, which the broker has verified."""

    def __init__(self, live: LiveState) -> None:
        self._live = live

    async def of(self, incoming: IncomingRequest[ListPeers]) -> PeerList:
        """The other sandboxes of the requester's project."""
        project, requester = incoming.names["project"], incoming.names["sandbox"]
        views = (
            view
            for view in self._live.sandbox_index.views()
            if view.project == project and incoming.request.sandbox in {None, view.sandbox}
        )
        return peers_of(requester, views, lambda task: self._text(project, task))

    def _text(self, project: str, task: str) -> str:
        known = self._live.task_index.get(f"{project}.{task}")
        return known.view.text if known else ""


def peers_of(requester: str, views: Iterable[SandboxView], text: Callable[[SafeName], str]) -> PeerList:
    """Sandboxes with an agent that can receive messages, newest first, without the requester's own. Pure."""
    reachable = (view for view in views if view.task and view.state not in SANDBOX_ENDING and view.sandbox != requester)
    newest = heapq.nlargest(MAX_PEERS + 1, reachable, key=lambda view: (view.requested_at, view.sandbox))
    peers = [
        Peer(sandbox=view.sandbox, task=view.task, state=view.state, text=text(view.task)[:_MAX_TEXT_LENGTH])
        for view in newest[:MAX_PEERS]
        if view.task
    ]
    return PeerList(peers=peers, more=len(newest) > MAX_PEERS)
