"""The time from the end of an agent to the pull request of its branch, and the number of API requests for it.

The forge is the double of GitHub, in this process like the spawner. The baseline of `branch.pull_request` is the time
to the push: the difference is what the pull request takes. The baseline of `branch.api_calls` is the minimum: one
request to find a pull request, and one to create it; the check whether the branch is protected is one more.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from nats.aio.msg import Msg

from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.names import new_name
from sandherd.contracts.pull_requests import PullRequestOptions
from sandherd.contracts.repositories import Repository
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner import main
from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.locations import ForgeKind
from spawner.main import compose
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.integration.forges.sites import Site, opened_site
from tests.patience import PATIENCE

_COUNT: Final = 5
_WITHIN: Final = 120.0
_POLLS: Final = frozenset(
    {
        "pulls/get",
        "pulls/list-reviews",
        "repos/get-branch-rules",
        "checks/list-for-ref",
        "repos/get-combined-status-for-ref",
    }
)
_FEWEST: Final = 2
_COMMITS: Final = ("/bin/sh", "-c", "date +%s%N > now.txt; git add .; git commit -qm now")
_ENDS: Final = ("agent.completed", "branch.pushed", "branch.pull_request_opened")


async def measure(recorder: Recorder) -> None:
    """Measure on one spawner, one task after the other."""
    async with opened_site(ForgeKind.GITHUB) as site, _herd(site) as tasks:
        await tasks.run(site)  # it makes the mirror
        for _ in recorder.each("branch.pull_request"):
            begun = _requests(site)
            pushed, opened = await measure_opened(tasks, site)
            recorder.add("branch.pull_request", opened, pushed)
            recorder.add("branch.api_calls", (_requests(site) - begun) / _COUNT, _FEWEST)


def _requests(site: Site) -> int:
    """The number of requests so far, without those that poll a pull request."""
    return sum(
        call.operation not in _POLLS and not call.operation.startswith("transport/") for call in site.double.calls
    )


async def measure_opened(tasks: "Tasks", site: Site) -> tuple[Latency, Latency]:
    """Measure from the end of the agent: the time to the push, and to the pull request."""
    found = [await tasks.run(site) for _ in range(_COUNT)]
    return tuple(latency_of([times[at] for times in found]) for at in (0, 1))  # type: ignore[return-value]  # two


class Tasks:
    """Submits tasks, and measures by the times in their events."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self, message: Msg) -> None:
        self._events.put_nowait(json.loads(message.data))

    async def run(self, site: Site) -> tuple[float, float]:
        """Run one task; returns the seconds from its agent's end to the push, and to the pull request."""
        name, times = new_name("task"), dict[str, datetime]()
        repository = Repository(url=f"{site.repository.url}.git", pull_request=PullRequestOptions(open="ready"))
        spec = TaskSpec(text="nothing", harness=CommandHarness(argv=list(_COMMITS)), repository=repository)
        command = wrap(
            SubmitTask(task=name, spec=spec), SubmitTask.type, source=f"/sandherd/client/{name}", sequence=1,
            project="bench", subject=name, time=datetime.now().astimezone(),
        )  # fmt: skip
        await self._bus.publish_command(command)
        async with asyncio.timeout(_WITHIN):
            while len(times) < len(_ENDS):
                event = await self._events.get()
                if event["type"] in _ENDS and event["taskid"] == name:
                    times[event["type"]] = datetime.fromisoformat(event["time"])
        ended, *others = (times[kind] for kind in _ENDS)
        return tuple((other - ended).total_seconds() for other in others)  # type: ignore[return-value]  # two


@asynccontextmanager
async def _herd(site: Site) -> AsyncIterator[Tasks]:
    """Start a broker, and a spawner that may use the forge."""
    token = site.token()
    with tempfile.TemporaryDirectory(prefix="bench-pulls-") as directory:
        folder = Path(directory)
        credentials = folder / "git-credentials"
        credentials.write_text(f"{site.double.url.replace('://', f'://x:{token}@')}\n")
        broker = Broker(folder / "herd")
        await broker.start()
        try:
            settings = broker.settings(
                Principal.SPAWNER, home=folder / "home", check_interval=0.2, isolation="none",
                repository_hosts=[site.double.url], git_credentials=credentials,
            )  # fmt: skip
            with patch.object(main, "forges_of", lambda _: _forges(site, token)):
                async with compose(settings).running(), broker.bus(Principal.CLIENT, project="bench") as bus:
                    tasks = Tasks(bus)
                    await bus.client.subscribe("sandherd.v1.event.bench.>", cb=tasks.receive)
                    await bus.flush(timeout=PATIENCE)
                    yield tasks
        finally:
            await broker.stop()


def _forges(site: Site, token: str) -> Forges:
    forges = Forges([site.repository.host])
    forges.add_sources(site.repository.host, [StoredTokens(lambda: token)])
    return forges
