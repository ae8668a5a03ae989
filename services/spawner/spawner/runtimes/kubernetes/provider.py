"""A Kubernetes cluster as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    BoxState,
    Command,
    File,
    ProviderError,
    ProviderFault,
    Ran,
)
from spawner.runtimes.kubernetes import executing, gate, manifests, packing, states
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.making import Making
from spawner.runtimes.kubernetes.manifests import ASIDE, BEGUN, Json, Kind, named
from spawner.runtimes.kubernetes.objects import Objects
from spawner.runtimes.kubernetes.watching import Listed, follow

_RESTART: Final = 15.0
"""How long a gate that has ended is waited for: the first time it is started again at once, then after a pause."""
_KILLED: Final = 15.0
"""How long the end of a pod's program may take to be known after it was killed."""
_MARGIN: Final = 2.0
"""How much later than at its end the cluster may say that a program has ended."""


class Pods:
    """The pods of one namespace. `cluster` is closed with it."""

    name = "kubernetes"
    # The number of processes of a pod is limited by its node's kubelet, for all pods alike.
    abilities = Abilities(pause=False, process_limit=False, ports=True)

    def __init__(self, cluster: Cluster, kind: Kind, version: str | None = None, worker: bytes | None = None) -> None:
        self._objects = Objects(cluster, version)
        self._cluster = cluster
        self._making = Making(self._objects, kind, worker)
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.abilities = replace(self.abilities, ports=not kind.closed, open_ports=kind.ports)

    async def create(self, spec: BoxSpec) -> Box:
        """Make the pod, wait until it runs, put its files there and open its gate; go on with what is half done."""
        async with self._one_at_a_time[spec.name]:
            try:
                return await self._making.make(spec)
            finally:
                self._one_at_a_time.pop(spec.name, None)

    async def get(self, name: str) -> Box | None:
        """The box of this name, set aside or not."""
        return await self._objects.box(name)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels."""
        return await self._objects.find(labels)

    async def start(self, name: str) -> None:
        """Open the gate of a pod once more. The mark comes last: without it, it is all done again."""
        box = await self._known(name)
        if box.alive:
            return
        self._refuse_lost(box)
        pod = await self._running(name)
        life = states.ended(pod) + 1
        await self._script(name, gate.opened(life))
        await self._objects.note(name, {BEGUN: str(life)})

    async def stop(self, name: str, grace: float) -> None:
        """Ask the program to end, and kill it after the grace. A pod in which nothing was begun is removed."""
        box = await self.get(name)
        if box is None or not box.alive:
            return
        if box.state is BoxState.CREATING:
            await self.remove(name)
            return
        for signal, wait in (("TERM", grace + _MARGIN if grace else 0), ("KILL", _KILLED)):
            if wait and await self._ends(box, signal, wait):
                return
        raise ProviderError(ProviderFault.TIMED_OUT, f"kubernetes: {name} was killed, and is not said to have ended")

    async def pause(self, name: str) -> None:
        """Refused: a cluster has no such thing."""
        raise ProviderError(ProviderFault.REFUSED, f"kubernetes: a pod can't stand still, so neither can {name}")

    async def resume(self, name: str) -> None:
        """Refused, as pausing is."""
        raise ProviderError(ProviderFault.REFUSED, f"kubernetes: a pod can't stand still, and {name} does not")

    async def remove(self, name: str) -> None:
        """Remove the pod, and wait until it is gone."""
        await self._objects.remove(name)

    async def set_aside(self, name: str) -> None:
        """Label the pod, by which every replica knows it. It stays where it is, with its files."""
        await self._objects.labelled(name, {ASIDE: "true"})

    async def take_back(self, name: str) -> None:
        """Take the label off again."""
        await self._objects.labelled(name, {ASIDE: None})

    async def run(self, name: str, command: Command) -> Ran:
        """Run a command as the pod's user."""
        await self._known(name)
        return await executing.run(self._cluster, named(name), command)

    async def put(self, name: str, files: Collection[File]) -> None:
        """Put files below our folder: they are unpacked when all of them are there."""
        content = packing.packed(files)
        box = await self._known(name)
        self._refuse_lost(box)
        await self._running(name)
        await self._script(name, gate.receive(len(content)), content)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content."""
        await self._running(name)
        ran = await executing.script(self._cluster, named(name), gate.shown(path, limit), most=limit)
        if ran.code == gate.NOT_THERE:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: there is no {path} in {name}")
        if ran.code == gate.TOO_LARGE:
            raise ProviderError(ProviderFault.REFUSED, f"{path} weighs more than the limit of {limit} bytes")
        if ran.code != 0:
            raise ProviderError(ProviderFault.REFUSED, f"{path} is no file that can be read")
        return ran.out

    async def address(self, name: str, port: int) -> Address:
        """The pod's own address, for whoever is in its cluster and is let in."""
        only = self.abilities.open_ports
        if only and port not in only:
            told = f"kubernetes: nobody is let in to port {port} of {name}: name it in SANDHERD_KUBERNETES_PORTS"
            raise ProviderError(ProviderFault.REFUSED, told)
        self._refuse_lost(await self._known(name))
        pod = await self._objects.pod(name)
        host = states.host(pod) if pod else None
        if host is None:
            told = f"kubernetes: the pod of {name} has no address yet; it gets one when a node has taken it"
            raise ProviderError(ProviderFault.TRANSIENT, told)
        return Address(f"http://{host}:{port}")

    async def changes(self) -> AsyncIterator[str]:
        """What the cluster says of our pods, from now on, as far as it changes a box."""
        known: dict[str, tuple[str, object]] = {}
        async with aclosing(follow(self._cluster, self._objects.pods, labelSelector=_OURS)) as news:
            async for one in news:
                items = one.items if isinstance(one, Listed) else [one.item]
                now = {item["metadata"]["name"]: _what(item) for item in items}
                missing = known.keys() - now.keys() if isinstance(one, Listed) else set()
                if not isinstance(one, Listed) and one.gone:
                    missing, now = set(now), {}
                told = [known[name][0] for name in missing if name in known]
                told += [unit for name, (unit, how) in now.items() if known.get(name, (unit, None))[1] != how]
                known = {name: what for name, what in (known | now).items() if name not in missing}
                for unit in told:
                    yield unit

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()

    # --- small things ------------------------------------------------------------------------------------------

    async def _known(self, name: str) -> Box:
        box = await self._objects.box(name)
        if box is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: there is no box {name}")
        return box

    async def _running(self, name: str) -> Json:
        """The pod, once commands can be run in it."""

        def holds(pod: Json | None) -> bool:
            return pod is None or states.runs(pod) or states.gone_for_good(pod)

        pod = await self._objects.until(name, holds, _RESTART)
        if pod is None or not states.runs(pod):
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: the pod of {name} is gone, with what it held")
        return pod

    def _refuse_lost(self, box: Box) -> None:
        if box.state is BoxState.FAILED:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {box.problem}")

    async def _ends(self, box: Box, signal: str, wait: float) -> bool:
        """Whether the program has ended within that time of being told to."""
        name = box.name

        def holds(pod: Json | None) -> bool:
            return pod is None or not states.box(pod).alive

        try:
            await self._script(name, gate.signalled(signal, box.runs))
        except ProviderError as error:
            if error.fault not in {ProviderFault.TRANSIENT, ProviderFault.NOT_FOUND}:
                raise  # its end may well cut our command off: whether it has ended is asked next
        try:
            await self._objects.until(name, holds, wait)
        except ProviderError as error:
            if error.fault is ProviderFault.TIMED_OUT:
                return False
            raise
        return True

    async def _script(self, name: str, text: str, payload: bytes = b"") -> None:
        ran = await executing.script(self._cluster, named(name), text, payload)
        if ran.code != 0:
            told = ran.err.decode(errors="replace").strip()[-200:]
            raise ProviderError(
                ProviderFault.TRANSIENT, f"kubernetes: a step in {name} ended with {ran.code}: {told or 'unsaid'}"
            )


_OURS: Final = manifests.selector({}) + f",{HERD}"


def _what(pod: Json) -> tuple[str, object]:
    box = states.box(pod)
    return box.name, (box.id, box.state, box.runs, box.end, box.aside)
