"""A Runtime API for tests, with processes of this host as pods, and a route to the agent server of each."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from aiohttp import web

from spawner.runtimes import cgroups
from tests.doubles.remote.machine import Machine
from tests.doubles.toolchains import Contents
from tests.http_servers import stop_server

KEY = "ah-7c1d5e0b94f84f6c8f0a7d2be3c95a61"
IMAGE = "ghcr.io/openhands/agent-server:latest-python"
COMMAND = "/usr/local/bin/openhands-agent-server --port 60000"
_MIB = 1024 * 1024


class ApiError(Exception):
    """An error response."""

    def __init__(self, status: int, error: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.body, self.headers = status, {"error": error, "message": message}, dict(headers or {})


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

    def hits(self, request: web.Request) -> bool:
        """Whether the fault hits this request; each hit counts."""
        hit = self.times > 0 and request.method == self.method and re.search(self.path, request.path) is not None
        self.times -= hit
        return hit


@dataclass
class Pod:
    """A runtime: its request, and its machine."""

    id: str
    requested: dict[str, Any]
    machine: Machine
    key: str
    status: str = "starting"
    pod_status: str = "pending"
    restarts: list[str] = field(default_factory=list)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    coming: asyncio.Task[None] | None = None


@dataclass
class Double:
    """The double; use it with `async with`. Tests set its fields to make it fail."""

    images: set[str] = field(default_factory=lambda: {IMAGE})
    faults: list[Fault] = field(default_factory=list)
    stuck: int = 0
    """How many of the next runtimes never become ready."""
    crashing: list[str] = field(default_factory=list)
    """The reasons for which the next runtimes crash repeatedly."""
    unpullable: int = 0
    """How many of the next runtimes wait for an image that can't be pulled."""
    remembers_stopped: bool = False
    """Whether a session is still known after its runtime was stopped; real services do either."""
    direct: bool = False
    """Whether each runtime has its own host name instead of a path only; the SDK's client knows no paths."""
    image: Contents = field(default_factory=Contents)
    """The contents of the image of its boxes."""
    publishes_hosts: bool = True
    """Whether it publishes the URLs of the other servers of a runtime."""
    step_mib: int = 4096
    real: tuple[Path, Path] | None = None
    """The Python and the packages of a real agent server, for all pods."""
    requested: list[tuple[str, str]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    """Every session key that has existed."""

    def __post_init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="remote-"))
        self.groups = cgroups.open_groups(f"remote-{self.folder.name}")
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._made: list[Machine] = []

    async def __aenter__(self) -> Self:
        from tests.doubles.remote.routes import application

        self._runner = web.AppRunner(application(self), shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.pods.values():
            await self._leave(pod)
        await asyncio.gather(*(machine.remove() for machine in self._made))
        assert self._runner is not None
        await stop_server(self._runner)
        self.groups.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fail(self, method: str, path: str, **how: Any) -> Fault:
        """Add a fault, which is in effect from now on."""
        fault = Fault(method, path, **how)
        self.faults.append(fault)
        return fault

    def living(self) -> list[str]:
        """The sessions of all runtimes that cost something. A test uses it to check that none was left."""
        return sorted(str(pod.requested["session_id"]) for pod in self.pods.values() if pod.status != "stopped")

    def of(self, name: str) -> Pod:
        """Find a runtime by the name of its box."""
        return next(pod for pod in self.pods.values() if str(pod.requested["session_id"]).endswith(name))

    # --- what the routes do --------------------------------------------------------------------------------------

    async def start(self, requested: dict[str, Any]) -> Pod:
        """Start a runtime, which is in progress when this returns; returns that of this session if there is one."""
        for pod in self.pods.values():
            if pod.requested["session_id"] == requested["session_id"] and pod.status != "stopped":
                return pod
        memory = int(requested.get("resource_factor", 1)) * self.step_mib * _MIB
        machine = Machine(uuid4().hex[:12], self.folder, self.groups, memory, self.real)
        machine.image = self.image
        self._made.append(machine)
        pod = Pod(uuid4().hex[:16], requested, machine, self._new_key())
        self.pods[pod.id] = pod
        if self.stuck:
            self.stuck -= 1
        elif self.unpullable:
            self.unpullable -= 1
            pod.statuses = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
        elif self.crashing:
            pod.restarts, pod.pod_status = [self.crashing.pop(0)] * 3, "crashloopbackoff"
        else:
            await self._come(pod)
        return pod

    async def stop(self, pod: Pod) -> None:
        """Stop a runtime, of which nothing is left."""
        await self._leave(pod)
        await pod.machine.remove()
        pod.status, pod.pod_status = "stopped", "not found"
        if not self.remembers_stopped:
            self.pods.pop(pod.id, None)

    async def pause(self, pod: Pod) -> None:
        """Pause a runtime: its processes end, and its files stay."""
        await self._leave(pod)
        pod.status, pod.pod_status = "paused", "not found"

    async def resume(self, pod: Pod) -> None:
        """Resume a runtime: a new pod with its files and another key."""
        if pod.status == "paused":
            pod.key, pod.status, pod.pod_status = self._new_key(), "starting", "pending"
            await self._come(pod)

    async def restart(self, pod: Pod, reason: str, *, wipe: bool = False) -> None:
        """Let a pod fail and start again, as Kubernetes does. With `wipe` its files are lost."""
        await self._leave(pod)
        if wipe:
            await pod.machine.end(wipe=True)
        pod.restarts.append(reason)
        await self._come(pod)
        await self.until_ready(pod)

    async def until_ready(self, pod: Pod) -> None:
        """Wait until its agent server is ready."""
        if pod.coming:
            await pod.coming

    async def _come(self, pod: Pod) -> None:
        env = {**pod.requested.get("environment", {}), "OH_SESSION_API_KEYS_0": pod.key, "SESSION_API_KEY": pod.key}
        await pod.machine.start(pod.requested["command"], env)
        pod.pod_status = "running"
        pod.coming = asyncio.create_task(self._becoming_ready(pod))

    async def _becoming_ready(self, pod: Pod) -> None:
        while not await pod.machine.answers():
            if not pod.machine.runs:
                pod.pod_status = "crashloopbackoff"
                return
            await asyncio.sleep(0.02)  # another process: it sends no notification
        pod.status, pod.pod_status = "running", "ready"

    async def _leave(self, pod: Pod) -> None:
        if pod.coming:
            pod.coming.cancel()
            await asyncio.gather(pod.coming, return_exceptions=True)
        await pod.machine.end()

    def _new_key(self) -> str:
        key = f"sess-{uuid4().hex}{uuid4().hex}"
        self.keys.add(key)
        return key
