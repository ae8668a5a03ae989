"""A release as its chart renders it: its broker, its cluster, and its services as processes."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandherd.bus.identity.deployment import Deployment, Ports
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.nats import find_binary, free_port
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.integration.deploy.charts import SERVICES, Json, pods, rendered
from tests.integration.deploy.node import Node
from tests.patience import PATIENCE


class Installed:
    """A release: its broker, its cluster, and the node that its pods run on."""

    def __init__(self, folder: Path, cluster: Cluster, database: str) -> None:
        self.folder, self.cluster = folder, cluster
        self.herd, self.port = folder / "herd", free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.monitor = free_port()
        ports = Ports(nats=self.port, websocket=free_port(), monitor=self.monitor)
        Deployment(self.herd, data=str(folder / "data"), ports=ports).make(["default"], int(time.time()))
        (folder / "database").mkdir()
        (folder / "database/url").write_text(database)
        objects = rendered(
            {
                "nats": {"url": self.url, "replicas": 1},
                "sandboxes": {"image": IMAGE, "namespace": "sandherd"},
                "settings": {"check_interval": 0.5, "kubernetes_storage_gb": 1, "stop_grace": 5},
                "pods": {"env": [{"name": "KUBECONFIG", "value": str(cluster.kubeconfig)}]},
            }
        )
        self.pods = dict(pods(objects))
        self.node = Node(folder, objects, self.secrets())
        self.children: dict[str, ChildProcess] = {}

    def secrets(self) -> dict[str, Path]:
        """The Secrets as docs/kubernetes.md creates them: one for each folder of `sandherd identity init`."""
        own = {f"sandherd-{name}": self.herd / "creds" / name for name in (*SERVICES, "provisioner")}
        return {
            **own,
            "sandherd-spawner-keys": self.herd / "identity/spawner",
            "the-database": self.folder / "database",
        }

    async def begin(self) -> None:
        """Start the broker, set it up, and start all services."""
        config = [find_binary(), "-c", str(self.herd / "nats/nats.conf")]
        self._keep("nats", ChildProcess(ChildCommand(arguments=config, log=self.folder / "nats.log"))).start()
        for job in ("provision", "migrate"):
            done = await asyncio.to_thread(self.node.run, self.pods[job])
            assert done.returncode == 0, done.stdout + done.stderr
        for name in SERVICES:
            self._keep(name, self.node.start(self.pods[name]))

    def _keep(self, name: str, child: ChildProcess) -> ChildProcess:
        self.children[name] = child
        return child

    async def probe(self, name: str, kind: str) -> tuple[int, str]:
        """The reply to a probe of a pod: its status and its body."""
        (container,) = self.pods[name]["spec"]["containers"]
        requested = container[kind]["httpGet"]
        assert requested["port"] == container["ports"][0]["name"]
        return await self.get(name, requested["path"])

    async def get(self, name: str, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, f"http://127.0.0.1:{self.node.ports[name]}{path}")

    async def account(self, name: str) -> str:
        """The public key of an account, found as the notes of the chart say."""
        found = await self.jsz(f"http://127.0.0.1:{self.monitor}/jsz?accounts=true")
        return next(str(one["id"]) for one in found if one["name"] == name)

    async def jsz(self, url: str) -> list[Json]:
        """The broker's monitoring data about accounts."""
        status, text = await asyncio.to_thread(get, url)
        assert status == 200
        return list(json.loads(text)["account_details"])

    async def test(self) -> tuple[int, str]:
        """Run `helm test`; returns its status and its output."""
        done = await asyncio.to_thread(self.node.run, self.pods["test"])
        return done.returncode, done.stdout + done.stderr

    async def close(self) -> None:
        """End all that was started, the broker last."""
        for name in reversed(list(self.children)):
            await self.children[name].kill()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, "no answer"


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not await look():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.1)
