"""A Kubernetes cluster as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sandherd.concurrency import KeyedLocks
from spawner.runtimes.boxes import box_files
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    BoxState,
    Command,
    CommandResult,
    File,
    ProviderError,
    ProviderFault,
)
from spawner.runtimes.kubernetes import entrypoint, execution, pod_logs, states
from spawner.runtimes.kubernetes.box_cache import BoxCache
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.creation import PodCreation
from spawner.runtimes.kubernetes.manifests import BEGUN, QUARANTINED, Json, PodOptions, pod_name
from spawner.runtimes.kubernetes.objects import BoxObjects
from spawner.runtimes.runtime_logs import LogQuery

_RESTART_SECONDS: Final = 15.0
"""How long to wait for the restart of a gate that has ended. The kubelet delays restarts, except the first."""
_KILL_SECONDS: Final = 15.0
"""How long the cluster may take to report the end of a killed program."""
_REPORT_SECONDS: Final = 2.0
"""How long the cluster may take to report the end of a program, in addition to its grace period."""


class PodProvider:
    """The pods of one namespace. `close` closes `cluster`, too."""

    name = "kubernetes"
    # The number of processes of a pod is limited by its node's kubelet, with one value for all pods.
    abilities = Abilities(pause=False, process_limit=False, ports=True, mounts=True, volumes_only=True)

    def __init__(
        self, cluster: Cluster, options: PodOptions, version: str | None = None, worker: bytes | None = None
    ) -> None:
        self._objects = BoxObjects(cluster, version)
        self._cache = BoxCache(self._objects)
        self._cluster = cluster
        self._pod_creation = PodCreation(self._objects, options, worker)
        self._creations: KeyedLocks[str] = KeyedLocks()
        self.abilities = replace(self.abilities, ports=not options.closed, open_ports=options.ports)

    async def create(self, spec: BoxSpec) -> Box:
        """Create the pod, wait until it runs, upload its files and open its gate. Continues an incomplete creation."""
        async with self._creations.hold(spec.name):
            with self._cache.record_writes(spec.name):
                return await self._pod_creation.make(spec)

    async def get(self, name: str) -> Box | None:
        """The box with this name, quarantined or not."""
        return await self._cache.get(name)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels."""
        return await self._cache.find(labels)

    async def start(self, name: str) -> None:
        """Open the gate of a pod again. The annotation is set last, so that until then a retry repeats all steps."""
        box = await self._existing(name)
        if box.alive:
            return
        self._refuse_lost(box)
        pod = await self._wait_running(name)
        life = states.end_count(pod) + 1
        with self._cache.record_writes(name):
            await self._script(name, entrypoint.open_gate(life))
            await self._objects.note(name, {BEGUN: str(life)})

    async def stop(self, name: str, grace: float) -> None:
        """Request the program to end; kill it after `grace` seconds. Remove a pod whose program never started."""
        with self._cache.record_writes(name):
            await self._stop(name, grace)

    async def _stop(self, name: str, grace: float) -> None:
        box = await self._objects.box(name)
        if box is None or not box.alive:
            return
        if box.state is BoxState.CREATING:
            await self._objects.remove(name)
            return
        for signal, wait in (("TERM", grace + _REPORT_SECONDS if grace else 0), ("KILL", _KILL_SECONDS)):
            if wait and await self._send_and_wait(box, signal, wait):
                return
        raise ProviderError(ProviderFault.TIMED_OUT, f"kubernetes: {name} was killed, but its end was not reported")

    async def pause(self, name: str) -> None:
        """Always refused: Kubernetes can't pause pods."""
        raise ProviderError(ProviderFault.REFUSED, f"kubernetes: pods can't be paused, so {name} can't either")

    async def resume(self, name: str) -> None:
        """Always refused, as pausing is."""
        raise ProviderError(ProviderFault.REFUSED, f"kubernetes: pods can't be paused, and {name} is not")

    async def remove(self, name: str) -> None:
        """Remove the pod, and wait until it is deleted."""
        with self._cache.record_writes(name):
            await self._objects.remove(name)

    async def mark_quarantined(self, name: str) -> None:
        """Set a label on the pod, which every replica sees. The pod remains, with its files."""
        with self._cache.record_writes(name):
            await self._objects.set_labels(name, {QUARANTINED: "true"})

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the label that `mark_quarantined` sets."""
        with self._cache.record_writes(name):
            await self._objects.set_labels(name, {QUARANTINED: None})

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command as the pod's user."""
        if await self.get(name) is None:
            raise _missing_error(name)
        return await execution.run(self._cluster, pod_name(name), command)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files below `ROOT`. They are unpacked when all of them are received."""
        content = box_files.pack(files)
        box = await self._existing(name)
        self._refuse_lost(box)
        await self._wait_running(name)
        await self._script(name, entrypoint.receive(len(content)), content)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content."""
        await self._wait_running(name)
        text = entrypoint.print_file(path, limit)
        result = await execution.script(self._cluster, pod_name(name), text, max_output=limit)
        if result.code == entrypoint.NOT_FOUND:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {path} does not exist in {name}")
        if result.code == entrypoint.TOO_LARGE:
            raise ProviderError(ProviderFault.REFUSED, f"{path} exceeds the limit of {limit} bytes")
        if result.code != 0:
            raise ProviderError(ProviderFault.REFUSED, f"{path} is not a readable file")
        return result.out

    async def address(self, name: str, port: int) -> Address:
        """The pod's own address, for clients in its cluster that the network policy allows."""
        open_ports = self.abilities.open_ports
        if open_ports and port not in open_ports:
            message = f"kubernetes: port {port} of {name} is not open: add it to SANDHERD_KUBERNETES_PORTS"
            raise ProviderError(ProviderFault.REFUSED, message)
        self._refuse_lost(await self._existing(name))
        pod = await self._objects.pod(name)
        host = states.url_host(pod) if pod else None
        if host is None:
            message = f"kubernetes: the pod of {name} has no address yet; it gets one once it is scheduled on a node"
            raise ProviderError(ProviderFault.TRANSIENT, message)
        return Address(f"http://{host}:{port}")

    def logs(self, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
        """The output of the pod's first process since its last restart, and before that restart."""
        return pod_logs.read(self._objects, name, query)

    def changes(self) -> AsyncGenerator[str, None]:
        """Yield the names of changed boxes. Until closed, `get` and `find` read copies of the objects if possible."""
        return self._cache.changes()

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()

    # --- one pod -----------------------------------------------------------------------------------------------

    async def _existing(self, name: str) -> Box:
        box = await self._objects.box(name)
        if box is None:
            raise _missing_error(name)
        return box

    async def _wait_running(self, name: str) -> Json:
        """Wait until commands can be run in the pod."""

        def condition(pod: Json | None) -> bool:
            return pod is None or states.accepts_commands(pod) or states.has_ended(pod)

        pod = await self._objects.until(name, condition, _RESTART_SECONDS)
        if pod is None or not states.accepts_commands(pod):
            raise ProviderError(
                ProviderFault.NOT_FOUND, f"kubernetes: the pod of {name} no longer exists; its data is lost"
            )
        return pod

    def _refuse_lost(self, box: Box) -> None:
        if box.state is BoxState.FAILED:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {box.problem}")

    async def _send_and_wait(self, box: Box, signal: str, wait: float) -> bool:
        """Send the signal. Returns whether the program has ended within `wait` seconds."""
        name = box.name

        def condition(pod: Json | None) -> bool:
            return pod is None or not states.box(pod).alive

        try:
            await self._script(name, entrypoint.send_signal(signal, box.runs))
        except ProviderError as error:
            if error.fault not in {ProviderFault.TRANSIENT, ProviderFault.NOT_FOUND}:
                raise  # any other error may be due to the program's end, for which the method waits next
        try:
            await self._objects.until(name, condition, wait)
        except ProviderError as error:
            if error.fault is ProviderFault.TIMED_OUT:
                return False
            raise
        return True

    async def _script(self, name: str, text: str, payload: bytes = b"") -> None:
        result = await execution.script(self._cluster, pod_name(name), text, payload)
        if result.code != 0:
            output = result.err.decode(errors="replace").strip()[-200:]
            raise ProviderError(
                ProviderFault.TRANSIENT,
                f"kubernetes: a script in {name} failed with status {result.code}: {output or 'no message'}",
            )


def _missing_error(name: str) -> ProviderError:
    return ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: box {name} does not exist")
