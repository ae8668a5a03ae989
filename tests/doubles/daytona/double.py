"""A Daytona for tests: its API over HTTP and Socket.IO, with processes of this host as sandboxes."""

import asyncio
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import socketio  # type: ignore[import-untyped]  # no types
from aiohttp import web

from spawner.runtimes import cgroups
from tests.doubles.daytona.answers import ApiError, checked, now
from tests.doubles.daytona.machine import Machine
from tests.doubles.toolchains import Contents
from tests.http_servers import stop_server

KEY = "dtn_0f5c1d6b7a8e4f3c9d2b1a0e5f6c7d8b"
SNAPSHOT = "sandherd-base"
IMAGE = "sandherd-test-base:bookworm"
_MEMORY_GIB = 1


@dataclass
class Fault:
    """A fault of requests with this method and path, which occurs a number of times."""

    method: str
    path: str
    times: int = 1
    error: ApiError | None = None
    """The request has no effect, and this error is sent."""
    lost: bool = False
    """The request takes effect, and no response is sent."""
    slow: float = 0.0
    """The request takes effect this number of seconds later."""

    def hits(self, request: web.Request) -> bool:
        """Whether the fault hits this request; each hit counts."""
        hit = self.times > 0 and request.method == self.method and re.search(self.path, request.path) is not None
        self.times -= hit
        return hit


@dataclass
class Held:
    """A sandbox: what the API shows of it, and its machine."""

    shown: dict[str, Any]
    machine: Machine
    changing: asyncio.Task[None] | None = None
    token: str = ""
    """The token that its ports require; each start creates another one."""

    @property
    def state(self) -> str:
        return str(self.shown["state"])


@dataclass
class Double:
    """The double; use it with `async with`. Tests set its fields to make it fail."""

    has_events: bool = True
    snapshots: dict[str, str] = field(default_factory=lambda: {SNAPSHOT: "active", "sandherd-old": "inactive"})
    images: set[str] = field(default_factory=lambda: {IMAGE})
    faults: list[Fault] = field(default_factory=list)
    stuck: Counter[str] = field(default_factory=Counter)
    """By state, how many of the next changes to it never complete; later ones do."""
    error_reasons: list[str] = field(default_factory=list)
    """The reasons with which the next sandboxes enter the state `error` instead of being started."""
    can_pause: bool = True
    image: Contents = field(default_factory=Contents)
    """The contents of the image of its sandboxes."""
    page: int = 100
    """The maximum number of sandboxes in one page of a list."""
    requested: list[tuple[str, str]] = field(default_factory=list)
    """The method and path of every request."""

    def __post_init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="daytona-"))
        self.groups = cgroups.open_groups(f"daytona-{self.folder.name}")
        self.url = ""
        self.events: socketio.AsyncServer | None = None
        self._runner: web.AppRunner | None = None
        self.tokens: set[str] = set()
        """Every token that a port has ever required."""
        self._made: list[Machine] = []

    async def __aenter__(self) -> Self:
        from tests.doubles.daytona.routes import application

        self._runner = web.AppRunner(application(self), shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        changing = [held.changing for held in self.held.values() if held.changing]
        for task in changing:
            task.cancel()
        await asyncio.gather(*changing, return_exceptions=True)
        await asyncio.gather(*(machine.remove() for machine in self._made))
        assert self._runner is not None
        await stop_server(self._runner)
        self.groups.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def api_url(self) -> str:
        """The URL of its API."""
        return f"{self.url}/api"

    def fail(self, method: str, path: str, **how: Any) -> Fault:
        """Add a fault, which is in effect from now on."""
        fault = Fault(method, path, **how)
        self.faults.append(fault)
        return fault

    def living(self, **labels: str) -> list[str]:
        """The names of all existing sandboxes with these labels. A test uses it to check that none was left."""
        return [held.shown["name"] for held in self.held.values() if labels.items() <= held.shown["labels"].items()]

    def of(self, name: str) -> Held:
        """Find a sandbox by its id or name."""
        for held in self.held.values():
            if name in {held.shown["id"], held.shown["name"]}:
                return held
        raise ApiError(404, f"Sandbox with ID or name {name} not found")

    async def break_down(self, name: str, reason: str) -> None:
        """Let a sandbox fail by itself."""
        held = self.of(name)
        await held.machine.stop()
        held.shown["errorReason"] = reason
        await self._into(held, "error")

    # --- what the routes do --------------------------------------------------------------------------------------

    async def create(self, wanted: dict[str, Any]) -> Held:
        """Create a sandbox, whose start is in progress when this returns."""
        name = wanted.get("name") or str(uuid4())
        if any(held.shown["name"] == name for held in self.held.values()):
            raise ApiError(409, f"Sandbox with name {name} already exists")
        image = re.sub(r"^FROM\s+|\s+$", "", (wanted.get("buildInfo") or {}).get("dockerfileContent", ""))
        if not image:
            self._check_snapshot(wanted.get("snapshot") or SNAPSHOT)
        memory = wanted.get("memory") or _MEMORY_GIB
        shown = self._shown(name, wanted, image, memory)
        machine = Machine(shown["id"], self.folder, self.groups, shown["env"], memory)
        machine.image = self.image
        self._made.append(machine)
        held = self.held[shown["id"]] = Held(checked("Sandbox", shown), machine)
        await self._notify(held, "sandbox.created", "")
        self._begin(held, self._starting(held, image))
        return held

    async def change(self, held: Held, wanted: str) -> Held:
        """Change a sandbox to another state. The change is in progress when this returns."""
        if held.changing and not held.changing.done() and wanted != "destroyed":
            raise ApiError(409, "Sandbox state change in progress")
        leave, passing, do = {
            "started": ({"stopped", "paused", "archived"}, "starting", self._start),
            "stopped": ({"started"}, "stopping", self._stop),
            "paused": ({"started"}, "pausing", self._pause),
            "destroyed": (None, "destroying", self._destroy),
        }[wanted]
        if leave is not None and held.state not in leave:
            raise ApiError(400, f"Sandbox is not {' or '.join(sorted(leave))}")
        if held.changing:
            held.changing.cancel()
            await asyncio.gather(held.changing, return_exceptions=True)
        passing = "resuming" if held.state == "paused" and wanted == "started" else passing
        await self._into(held, passing)
        self._begin(held, self._changing(held, wanted, do))
        return held

    async def _changing(self, held: Held, wanted: str, do: Callable[[Held], Awaitable[None]]) -> None:
        if self.stuck[wanted] > 0:
            self.stuck[wanted] -= 1
            await asyncio.Event().wait()
        await do(held)
        await self._into(held, wanted)
        if wanted == "destroyed" or (wanted == "stopped" and held.shown["autoDeleteInterval"] == 0):
            await held.machine.remove()
            self.held.pop(held.shown["id"])

    async def _starting(self, held: Held, image: str) -> None:
        if image and image not in self.images:
            held.shown["errorReason"] = f"pull access denied for {image}, repository does not exist"
            await self._into(held, "build_failed")
        elif self.error_reasons:
            held.shown["errorReason"] = self.error_reasons.pop(0)
            await self._into(held, "error")
        else:
            await self._changing(held, "started", self._start)

    async def _start(self, held: Held) -> None:
        held.token = uuid4().hex
        self.tokens.add(held.token)
        if held.machine.frozen():
            held.machine.freeze(frozen=False)
        else:
            await held.machine.start()

    async def _stop(self, held: Held) -> None:
        await held.machine.stop()

    async def _pause(self, held: Held) -> None:
        while not held.machine.frozen():
            held.machine.freeze(frozen=True)  # cgroups of version 1 have to be frozen again if one was forking
            await asyncio.sleep(0.01)

    async def _destroy(self, held: Held) -> None:
        await held.machine.remove()

    def _begin(self, held: Held, change: Any) -> None:
        held.changing = asyncio.create_task(change)

    async def _into(self, held: Held, state: str) -> None:
        old, held.shown["state"] = held.state, state
        held.shown["updatedAt"] = now()
        await self._notify(held, "sandbox.state.updated", old)

    async def _notify(self, held: Held, event: str, old: str) -> None:
        if self.events is None:
            return
        shown = checked("Sandbox", held.shown)
        news = shown if event == "sandbox.created" else {"sandbox": shown, "oldState": old, "newState": held.state}
        await self.events.emit(event, news)

    def _check_snapshot(self, name: str) -> None:
        state = self.snapshots.get(name)
        if state is None:
            raise ApiError(400, f"Snapshot {name} not found. Did you add it through the Daytona Dashboard?")
        if state != "active":
            raise ApiError(400, f"Snapshot {name} is {state}")

    def _shown(self, name: str, wanted: dict[str, Any], image: str, memory: int) -> dict[str, Any]:
        when = now()
        built = {"dockerfileContent": f"FROM {image}\n", "createdAt": when, "updatedAt": when, "snapshotRef": "ref"}
        return {
            "id": str(uuid4()),
            "organizationId": "org-1",
            "name": name,
            "user": wanted.get("user") or "daytona",
            "env": wanted.get("env") or {},
            "labels": wanted.get("labels") or {},
            "public": False,
            "kvm": False,
            "networkBlockAll": bool(wanted.get("networkBlockAll")),
            "target": wanted.get("target") or "us",
            **({"networkAllowList": wanted["networkAllowList"]} if wanted.get("networkAllowList") else {}),
            "cpu": wanted.get("cpu") or 1,
            "gpu": 0,
            "memory": memory,
            "disk": wanted.get("disk") or 3,
            **({"buildInfo": built} if image else {"snapshot": wanted.get("snapshot") or SNAPSHOT}),
            "state": "creating",
            "desiredState": "started",
            "errorReason": None,
            "volumes": wanted["volumes"],
            **{name: wanted.get(name) for name in ("autoStopInterval", "autoArchiveInterval", "autoDeleteInterval")},
            "createdAt": when,
            "updatedAt": when,
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }
