"""Who else works in a sandbox's project: what an agent may know of the others, and no more."""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from sandherd.bus.service import Asked
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import AskPeers, Peer, PeerList, SandboxView
from sandherd.contracts.states import SANDBOX_ENDING
from spawner.live import Live

MOST: Final = 100
_TEXT: Final = 200


class Peers:
    """Answers `spawner.peers`. The subject says which sandbox asks: the broker has checked that."""

    def __init__(self, live: Live) -> None:
        self._live = live

    async def of(self, asked: Asked[AskPeers]) -> PeerList:
        """The others of the asker's own project."""
        project, asker = asked.names["project"], asked.names["sandbox"]
        views = (
            view
            for view in self._live.sandbox_index.views()
            if view.project == project and asked.request.sandbox in {None, view.sandbox}
        )
        return peers_of(asker, views, lambda task: self._text(project, task))

    def _text(self, project: str, task: str) -> str:
        known = self._live.task_index.get(f"{project}.{task}")
        return known.view.text if known else ""


def peers_of(asker: str, views: Iterable[SandboxView], text: Callable[[SafeName], str]) -> PeerList:
    """Those in which an agent works that a message can reach, newest first, without the asker's own. Pure."""
    reached = (view for view in views if view.task and view.state not in SANDBOX_ENDING and view.sandbox != asker)
    newest = heapq.nlargest(MOST + 1, reached, key=lambda view: (view.requested_at, view.sandbox))
    peers = [
        Peer(sandbox=view.sandbox, task=view.task, state=view.state, text=text(view.task)[:_TEXT])
        for view in newest[:MOST]
        if view.task
    ]
    return PeerList(peers=peers, more=len(newest) > MOST)
