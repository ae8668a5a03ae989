"""Which part of this room answers what, and how much of it at the same time."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from sandherd.bus.answering import Answerer, Asked
from sandherd.bus.connection import Bus
from sandherd.contracts.requests import (
    AskAgentServer,
    AskPeers,
    Download,
    DownloadChunk,
    Exec,
    ExecKill,
    ExecStatus,
    Fetch,
    ListFiles,
    ListRuntimes,
    Request,
    Upload,
    UploadChunk,
)
from sandherd.settings import Settings
from spawner.access.access import Access
from spawner.access.catalogue import catalogue
from spawner.access.peers import Peers
from spawner.access.pieces import Pieces
from spawner.access.reaching import Reach
from spawner.access.refusals import MIB
from spawner.access.serving import Servers
from spawner.live import Live
from spawner.resolving import Menu
from spawner.runtimes.contract import Runtime

_HELD_BACK: Final = 2000
"""Answers that wait for something to tell: one for each who follows a command or a transfer."""
_SHORT: Final = 200
_PIECES: Final = 64
"""Each holds a piece in memory."""

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {
    Exec: _HELD_BACK,
    ExecStatus: _HELD_BACK,
    ExecKill: _SHORT,
    ListFiles: _SHORT,
    Upload: _HELD_BACK,
    Download: _HELD_BACK,
    UploadChunk: _PIECES,
    DownloadChunk: _PIECES,
    Fetch: _PIECES,
    AskAgentServer: _SHORT,
    AskPeers: 1,
    ListRuntimes: 1,
}
"""What is asked of this room, and how many of each are answered at once by a replica."""


def make_answers(
    bus: Bus, live: Live, settings: Settings, *, menu: Menu, runtimes: Mapping[str, Runtime], secrets_key: str
) -> dict[type[Request[Any]], Answerer]:
    """The handlers, one for each of `ANSWERED`."""
    reach, cap = Reach(bus, live), settings.max_file_mb * MIB
    access, pieces = Access(reach, cap, live.meters), Pieces(bus, reach, cap, live.meters)
    offer = catalogue(settings, menu, runtimes, secrets_key)

    async def list_runtimes(_asked: Asked[ListRuntimes]) -> BaseModel:
        return offer

    return {
        Exec: access.exec,
        ExecStatus: access.exec_status,
        ExecKill: access.exec_kill,
        ListFiles: access.list_files,
        Upload: access.upload,
        Download: access.download,
        UploadChunk: pieces.hold,
        DownloadChunk: pieces.give,
        Fetch: pieces.fetch,
        AskAgentServer: Servers(reach, runtimes).of,
        AskPeers: Peers(live).of,
        ListRuntimes: list_runtimes,
    }
