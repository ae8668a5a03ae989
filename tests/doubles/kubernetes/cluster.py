"""A cluster for tests, in its own thread: its API server, its node, and its kubeconfig."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

import yaml
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from spawner.runtimes.cgroups import open_groups
from tests.doubles.kubernetes.api import Api
from tests.doubles.kubernetes.kubelet import Kubelet
from tests.doubles.kubernetes.store import Json, Store
from tests.http_servers import stop_server

T = TypeVar("T")
IMAGE = "sandherd-test-base:bookworm"
NAMESPACE = "sandherd"


class Cluster:
    """A cluster with one node; it ends with the block, and so does everything that it ran."""

    def __init__(self, sandboxes: str | None = None, memory: float = 64 << 30) -> None:
        self.token = f"secret-{uuid4().hex}"
        self.folder = Path(tempfile.mkdtemp(prefix="kube-"))
        self._sandboxes = sandboxes
        self._memory = memory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._groups = open_groups(f"kube-{uuid4().hex[:8]}")
        self.host = ""

    def __enter__(self) -> Self:
        self.folder.chmod(0o755)
        self._thread.start()
        self.do(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._groups.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the cluster's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def now(self, call: Callable[[], T]) -> T:
        """Run a plain function in the cluster's loop, and wait for it."""

        async def done() -> T:
            return call()

        return self.do(done())

    async def later(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that runs in the cluster's loop, from another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def objects(self, resource: str) -> list[Json]:
        """All objects of a kind."""
        return self.now(lambda: [item for (kind, _, _), item in self.store.objects.items() if kind == resource])

    def configuration(self) -> Configuration:
        """The client configuration for this cluster."""
        found = Configuration(host=self.host)
        found.api_key["BearerToken"] = f"Bearer {self.token}"
        return found

    @property
    def kubeconfig(self) -> Path:
        """The client configuration as a file."""
        file = self.folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "clusters": [{"name": "double", "cluster": {"server": self.host}}],
            "users": [{"name": "spawner", "user": {"token": self.token}}],
            "contexts": [
                {"name": "double", "context": {"cluster": "double", "user": "spawner", "namespace": NAMESPACE}}
            ],
        }
        file.write_text(yaml.safe_dump(document))
        file.chmod(0o600)
        return file

    async def _start(self) -> None:
        self.store = Store()
        self.kubelet = Kubelet(self.store, self.folder / "pods", self._groups, {IMAGE}, self._memory)
        self.api = Api(self.store, self.kubelet, self.token, self._sandboxes)
        self._runner = web.AppRunner(self.api.app(), access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.host = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        self.api.streams.clear()
        self.store.wake()
        await self.kubelet.close()
        await stop_server(self._runner)
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
