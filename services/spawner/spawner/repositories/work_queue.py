"""A queue of keys to work on: several at once, one key never twice, and few of one project or host.

So a project, or a host that does not respond, can't stop the others.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sandherd.backoff import Backoff
from sandherd.concurrency import run_until_first

HostOf = Callable[[str], str | None]
"""The host that work on a key contacts, or None."""
Work = Callable[[str], Awaitable[bool]]
"""Works on a key; returns whether it is to be worked on again later. It must not raise."""
_TURN_SECONDS: Final = 0.5
"""After how long a key of a project or host with as many at once is looked at again."""


class WorkQueue:
    """Keys are `<project>.<name>`. One that is to be worked on again waits by the backoff."""

    def __init__(
        self,
        work: Work,
        retry: Backoff,
        *,
        at_once: int,
        of_project: int,
        of_host: int = 0,
        host_of: HostOf | None = None,
    ) -> None:
        """`of_host`: how many at once may contact one host, by `host_of`."""
        self._work, self._retry = work, retry
        self._at_once, self._of_project = at_once, of_project
        self._of_host, self._host_of = of_host, host_of or (lambda _: None)
        self._hosts: Counter[str] = Counter()
        self._requested: asyncio.Queue[str] = asyncio.Queue()
        self._active: set[str] = set()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._projects: Counter[str] = Counter()
        self._failures: defaultdict[str, int] = defaultdict(int)

    def request(self, key: str) -> None:
        """Have this key worked on, unless it waits for that; repeated if it is being worked on."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._active:
            self._active.add(key)
            self._requested.put_nowait(key)

    async def run(self) -> None:
        """Work on what is requested, until cancelled."""
        await run_until_first(*(self._take() for _ in range(self._at_once)))

    async def _take(self) -> None:
        while True:
            key = await self._requested.get()
            project, host = key.partition(".")[0], self._host_of(key)
            full = host is not None and self._hosts[host] >= self._of_host
            if full or self._projects[project] >= self._of_project:
                self._later(_TURN_SECONDS, self._requested.put_nowait, key)
                continue
            with self._counted(project, host):
                self._working.add(key)
                try:
                    failed = await self._work(key)
                finally:
                    self._working.discard(key)
                    self._active.discard(key)
            self._settle(key, failed=failed)

    @contextmanager
    def _counted(self, project: str, host: str | None) -> Iterator[None]:
        self._projects[project] += 1
        if host is not None:
            self._hosts[host] += 1
        try:
            yield
        finally:
            self._projects[project] -= 1
            if host is not None:
                self._hosts[host] -= 1

    def _settle(self, key: str, *, failed: bool) -> None:
        again = key in self._again
        self._again.discard(key)
        if failed:  # requests meanwhile wait for the backoff, too: a scheduler repeats them every second
            self._failures[key] += 1
            self._active.add(key)
            self._later(self._retry.delay(self._failures[key] - 1), self._requested.put_nowait, key)
            return
        self._failures.pop(key, None)
        if again:
            self.request(key)

    @staticmethod
    def _later(seconds: float, call: Callable[[str], None], key: str) -> None:
        asyncio.get_running_loop().call_later(seconds, call, key)
