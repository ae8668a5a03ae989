"""Connections to forked workers, when a start is cancelled meanwhile."""

import socket

from spawner.runtimes.fork_server import Handover


def test_connection_is_closed_if_its_coroutine_was_cancelled() -> None:
    """Before or after the thread has opened it; otherwise it stays open."""
    pairs = [socket.socketpair() for _ in range(3)]
    for number, (near, _) in enumerate(pairs):
        handover = Handover()
        if number == 0:
            handover.abandon()
        handover.put(near)
        if number == 1:
            handover.abandon()
    assert [near.fileno() < 0 for near, _ in pairs] == [True, True, False]
    for pair in pairs:
        for end in pair:
            end.close()
