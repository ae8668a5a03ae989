"""A queue of keys that are worked on concurrently, each only once at a time, and only a few of one project or host.

So neither a project nor a host that does not respond can block the others. Work on a key can always begin if no key of
the same host is being worked on.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from sandherd.backoff import Backoff
from sandherd.concurrency import cancel_and_wait, run_until_first

HostOf = Callable[[str], str | None]
"""The host that work on a key contacts, or None."""
Work = Callable[[str], Coroutine[Any, Any, bool]]
"""Works on a key; returns whether to retry later. It must not raise."""
_RETRY_SECONDS: Final = 0.5
"""The delay until a key is tried again because its project or host has its maximum."""


class WorkQueue:
    """A queue of keys, which are `<project>.<name>`. A key whose work is to be retried waits for the backoff."""

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
        """The maximum keys that are worked on concurrently: `at_once` in all, `of_project` and `of_host` of each.

        The first key of a host may exceed `at_once`. The first key of a project at a host may exceed `of_project`.
        """
        self._work, self._retry = work, retry
        self._at_once, self._of_project = at_once, of_project
        self._of_host, self._host_of = of_host, host_of or (lambda _: None)
        self._hosts: Counter[str | None] = Counter()
        self._projects_at_hosts: Counter[tuple[str, str | None]] = Counter()
        self._requested: asyncio.Queue[str] = asyncio.Queue()
        self._active: set[str] = set()
        """Keys that are queued, wait for the backoff, or are being worked on."""
        self._working: set[str] = set()
        self._requested_again: set[str] = set()
        """Keys that were requested while they are being worked on."""
        self._projects: Counter[str] = Counter()
        self._failures: defaultdict[str, int] = defaultdict(int)

    def request(self, key: str) -> None:
        """Queue this key, unless it is queued already. A key that is being worked on is queued again afterwards."""
        if key in self._working:
            self._requested_again.add(key)
        elif key not in self._active:
            self._active.add(key)
            self._requested.put_nowait(key)

    async def run(self) -> None:
        """Work on the requested keys, until cancelled."""
        running: set[asyncio.Task[bool]] = set()
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await run_until_first(self._begin_all(running, broken), broken)
        finally:
            await cancel_and_wait(list(running))

    async def _begin_all(self, running: set[asyncio.Task[bool]], broken: asyncio.Future[None]) -> None:
        while True:
            key = await self._requested.get()
            project_and_host = (key.partition(".")[0], self._host_of(key))
            if not self._is_free(*project_and_host):
                self._later(_RETRY_SECONDS, self._requested.put_nowait, key)
                continue
            self._count(*project_and_host, 1)
            self._working.add(key)
            task = asyncio.create_task(self._work(key))
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(partial(self._ended, key, *project_and_host, broken))

    def _is_free(self, project: str, host: str | None) -> bool:
        """Whether work on another key of this project and host may begin."""
        if host is not None and self._hosts[host] >= self._of_host:
            return False
        if self._projects_at_hosts[project, host] and self._projects[project] >= self._of_project:
            return False
        return not self._hosts[host] or self._hosts.total() < self._at_once

    def _count(self, project: str, host: str | None, change: int) -> None:
        self._projects[project] += change
        self._hosts[host] += change
        self._projects_at_hosts[project, host] += change
        if not self._projects_at_hosts[project, host]:
            del self._projects_at_hosts[project, host]

    def _ended(
        self, key: str, project: str, host: str | None, broken: asyncio.Future[None], task: "asyncio.Task[bool]"
    ) -> None:
        self._count(project, host, -1)
        self._working.discard(key)
        self._active.discard(key)
        if task.cancelled() or broken.done():
            return
        if error := task.exception():
            broken.set_exception(error)
            return
        self._finish(key, failed=task.result())

    def _finish(self, key: str, *, failed: bool) -> None:
        is_requested_again = key in self._requested_again
        self._requested_again.discard(key)
        if failed:  # requests meanwhile wait for the backoff, too: a scheduler repeats them every second
            self._failures[key] += 1
            self._active.add(key)
            self._later(self._retry.delay(self._failures[key] - 1), self._requested.put_nowait, key)
            return
        self._failures.pop(key, None)
        if is_requested_again:
            self.request(key)

    @staticmethod
    def _later(seconds: float, call: Callable[[str], None], key: str) -> None:
        asyncio.get_running_loop().call_later(seconds, call, key)
