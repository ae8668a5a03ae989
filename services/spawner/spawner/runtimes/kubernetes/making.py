"""Making a box step by step, each of which may have been done before: the answer to any of them may have been lost."""

import time
from typing import Final

from sandherd.telemetry import logs
from spawner.runtimes.boxes.bundle import WORKER, kept
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import Box, BoxSpec, ProviderError, ProviderFault, Ran
from spawner.runtimes.kubernetes import executing, gate, manifests, packing, states
from spawner.runtimes.kubernetes.manifests import BEGUN, Json, Kind, named
from spawner.runtimes.kubernetes.objects import Objects

_SHORTEST: Final = 1.0
_log: Final = logs.get("runtime.kubernetes")


class Making:
    """How boxes are made of pods. `worker` is its archive, for images that lack it; None: as this spawner has it."""

    def __init__(self, objects: Objects, kind: Kind, worker: bytes | None = None) -> None:
        self._objects = objects
        self._kind = kind
        self._worker = worker

    async def make(self, spec: BoxSpec) -> Box:
        """The box, with its program started."""
        box = await self._placed(spec)
        if box.runs:
            return box
        pod = await self._until_running(spec.name, box)
        life = await self._furnished(spec, states.ended(pod) + 1)
        await self._objects.note(spec.name, {BEGUN: str(life)})
        made = await self._objects.box(spec.name)
        if made is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {spec.name} was removed while it was made")
        return made

    async def _placed(self, spec: BoxSpec) -> Box:
        version = self._objects.version
        box = await self._objects.box(spec.name)
        if box is None:
            body = manifests.sandbox(spec, self._kind, version) if version else manifests.pod(spec, self._kind)
            await self._objects.make(body)
            box = await self._objects.box(spec.name)
        if box is None:
            raise ProviderError(ProviderFault.TRANSIENT, f"kubernetes: {spec.name} is being removed; wait for its end")
        if box.labels.get(HERD) != spec.labels.get(HERD):
            told = (
                f"kubernetes: there is a pod {named(spec.name)} that is not ours; remove it, or use another namespace"
            )
            raise ProviderError(ProviderFault.REFUSED, told)
        return box

    async def _until_running(self, name: str, box: Box) -> Json:
        """The pod, once commands can be run in it. One that never will is removed, and it is said why."""
        left = max(_SHORTEST, self._kind.pending - (time.time() - box.created_at.timestamp()))
        last: list[Json] = []

        def holds(pod: Json | None) -> bool:
            last[:] = [pod] if pod else []
            return pod is not None and (states.runs(pod) or states.waiting(pod).hopeless)

        try:
            pod = await self._objects.until(name, holds, left)
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
            pod = last[0] if last else None
        if pod is not None and states.runs(pod):
            return pod
        why = states.waiting(pod) if pod else states.Waiting(ProviderFault.TIMED_OUT, "its controller makes no pod")
        _log.warning("a pod does not come to run", sandbox=name, why=why.why)
        await self._objects.remove(name)
        raise ProviderError(why.fault, f"kubernetes: {name} does not run, and was removed: {why.why}")

    async def _furnished(self, spec: BoxSpec, life: int) -> int:
        """Bring what the pod lacks, and open its gate. Returns the life that it was opened for, by whomever."""
        said = (await self._step(spec.name, gate.state())).out.split()
        if opened := int(said[0]):
            return opened
        if spec.program[0].startswith(WORKER) and said[1] == b"no":
            archive = await kept() if self._worker is None else self._worker
            await self._step(spec.name, gate.bring(len(archive)), archive)
        files = packing.packed(spec.files)
        text = gate.unless_open(life) + gate.receive(len(files)) + gate.opened(life)
        await self._step(spec.name, text, files)
        return life

    async def _step(self, name: str, text: str, payload: bytes = b"") -> Ran:
        ran = await executing.script(self._objects.cluster, named(name), text, payload)
        if ran.code != 0:
            told = ran.err.decode(errors="replace").strip()[-200:]
            raise ProviderError(
                ProviderFault.TRANSIENT, f"kubernetes: furnishing {name} ended with {ran.code}: {told or 'unsaid'}"
            )
        return ran
