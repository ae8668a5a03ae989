"""The name server of a sandbox: it forwards questions to the host's own resolvers, for names that may be looked up."""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandherd_network import messages
from sandherd_network.loop import READ, Loop
from sandherd_network.messages import Question
from sandherd_network.policy import Decisions, literal

RESOLV_CONF: Final = Path("/etc/resolv.conf")
PORT: Final = 53
_MOST: Final = 64
"""How many questions of one sandbox are waited for at once; further ones fail."""
_SECONDS: Final = 3.0
_TRIES: Final = 3
_LARGEST: Final = 65_535
_SHORTEST_PIN: Final = 3600.0
"""For how long at the least an address of an allowed name is allowed: programs remember it for longer than they may."""

Reply = Callable[[bytes], None]


@dataclass
class _Waiting:
    message: bytes
    question: Question
    reply: Reply
    tries: int
    upstream: socket.socket
    number: bytes
    since: float


def name_servers() -> list[str]:
    """The host's resolvers, as its `resolv.conf` names them now."""
    found = []
    with suppress(OSError):
        for line in RESOLV_CONF.read_text(errors="replace").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver" and literal(words[1].partition("%")[0]):
                found.append(words[1])
    return found[:_TRIES] or ["127.0.0.1"]


class Resolver:
    """Answers questions that come in datagrams, and remembers which addresses the policy's names have."""

    def __init__(self, loop: Loop, decisions: Decisions) -> None:
        self._loop, self._decisions = loop, decisions
        self._waiting: set[int] = set()
        self._asked: dict[int, _Waiting] = {}
        loop.every_round(self._tick)

    def serve(self, server: socket.socket) -> None:
        """Answer what comes to this socket from now on."""
        server.setblocking(False)
        self._loop.watch(server.fileno(), READ, lambda _: self._on_datagram(server))

    def ask(self, message: bytes, reply: Reply) -> None:
        """Answer one question, at once or later; what is no question gets no answer."""
        question = messages.question_of(message)
        if question is None or not messages.is_question(message):
            return
        if not self._decisions.policy.may_resolve(question.name):
            reply(messages.failure(message, question, messages.NO_SUCH_NAME))
        elif len(self._asked) >= _MOST or not self._send(message, question, reply, 0):
            reply(messages.failure(message, question, messages.SERVER_FAILURE))

    def _on_datagram(self, server: socket.socket) -> None:
        for _ in range(_MOST):
            try:
                message, control, _, client = server.recvmsg(_LARGEST, 256)
            except OSError:
                return
            self.ask(message, _replying(server, control, client))

    def _send(self, message: bytes, question: Question, reply: Reply, tries: int) -> bool:
        servers = name_servers()
        server = servers[tries % len(servers)]
        upstream = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
        upstream.setblocking(False)
        number = os.urandom(2)
        try:
            upstream.connect((server, PORT))
            upstream.send(number + message[2:])
        except OSError:
            upstream.close()
            return False
        self._asked[upstream.fileno()] = _Waiting(message, question, reply, tries, upstream, number, self._loop.now)
        self._loop.watch(upstream.fileno(), READ, lambda _: self._on_answer(upstream))
        return True

    def _on_answer(self, upstream: socket.socket) -> None:
        waiting = self._asked[upstream.fileno()]
        try:
            answer = upstream.recv(_LARGEST)
        except OSError:
            self._again(waiting)
            return
        asked = messages.question_of(answer)
        if answer[:2] != waiting.number or (asked and asked.name != waiting.question.name):
            return  # not the answer to this question: it is waited for on
        self._drop(waiting)
        for found in messages.addresses_of(answer) if asked else []:
            until = self._loop.now + max(found.seconds, _SHORTEST_PIN)
            self._decisions.remember(waiting.question.name, [found.address], until)
        waiting.reply(waiting.message[:2] + answer[2:])

    def _again(self, waiting: _Waiting) -> None:
        self._drop(waiting)
        for tries in range(waiting.tries + 1, _TRIES):
            if self._send(waiting.message, waiting.question, waiting.reply, tries):
                return
        waiting.reply(messages.failure(waiting.message, waiting.question, messages.SERVER_FAILURE))

    def _drop(self, waiting: _Waiting) -> None:
        self._asked.pop(waiting.upstream.fileno())
        self._loop.forget(waiting.upstream.fileno())
        waiting.upstream.close()

    def _tick(self) -> float | None:
        for waiting in [one for one in self._asked.values() if self._loop.now - one.since > _SECONDS]:
            self._again(waiting)
        return 0.5 if self._asked else None


def _replying(server: socket.socket, control: list[tuple[int, int, bytes]], client: tuple[Any, ...]) -> Reply:
    """Answers come from the address that was asked, or the asker takes no notice of them."""

    def reply(answer: bytes) -> None:
        with suppress(OSError):
            server.sendmsg([answer], [_from(level, kind, data) for level, kind, data in control], 0, client)

    return reply


def _from(level: int, kind: int, data: bytes) -> tuple[int, int, bytes]:
    """What was received as the destination (`in_pktinfo`, `in6_pktinfo`), as the source of an answer."""
    if level == socket.IPPROTO_IPV6:
        return level, kind, data[:16] + struct.pack("=I", 0)
    return level, kind, struct.pack("=I4s4s", 0, data[8:12], b"")
