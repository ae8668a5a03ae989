"""Creates a box in idempotent steps: each may have been done before, if its reply was lost."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from sandherd.concurrency import cancel_and_wait
from sandherd.telemetry import logs
from spawner.runtimes.boxes import box_files
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import Box, BoxSpec, BoxState, CommandResult, ProviderError, ProviderFault
from spawner.runtimes.boxes.worker_bundle import WORKER, cached_archive
from spawner.runtimes.kubernetes import entrypoint, execution, manifests, states
from spawner.runtimes.kubernetes.manifests import BEGUN, Json, PodOptions, named
from spawner.runtimes.kubernetes.objects import BoxObjects, not_removed
from spawner.runtimes.kubernetes.states import PodWaitReason

_SHORTEST: Final = 1.0
_log: Final = logs.get("runtime.kubernetes")


class PodCreation:
    """Creates boxes as pods. `worker`: the worker's archive, for images without it; None: the one installed here."""

    def __init__(self, objects: BoxObjects, kind: PodOptions, worker: bytes | None = None) -> None:
        self._objects = objects
        self._kind = kind
        self._worker = worker

    async def make(self, spec: BoxSpec) -> Box:
        """Create the box and start its program. Raises `ProviderError`, also if the cluster has ended the box."""
        box = await self._create_objects(spec)
        if box.runs:
            return box
        pod = await self._until_running(spec.name, box)
        life = await self._set_up(spec, states.ended(pod) + 1)
        await self._objects.note(spec.name, {BEGUN: str(life)})
        objects = await self._objects.read(spec.name)
        made = states.of(*objects)
        if made is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {spec.name} was removed during its creation")
        _refuse_ended(made, *objects)
        return made

    async def _create_objects(self, spec: BoxSpec) -> Box:
        version = self._objects.version
        sandbox, pod = await self._objects.read(spec.name)
        if sandbox is None and pod is None:
            body = manifests.sandbox(spec, self._kind, version) if version else manifests.pod(spec, self._kind)
            await self._objects.make(body)
            sandbox, pod = await self._objects.read(spec.name)
        box = states.of(sandbox, pod)
        if box is None:
            raise ProviderError(ProviderFault.TRANSIENT, f"kubernetes: {spec.name} is being removed; retry later")
        if box.labels.get(HERD) != spec.labels.get(HERD):
            message = f"kubernetes: pod {named(spec.name)} is another herd's; remove it, or use another namespace"
            raise ProviderError(ProviderFault.REFUSED, message)
        _refuse_ended(box, sandbox, pod)
        return box

    async def _until_running(self, name: str, box: Box) -> Json:
        """Wait until commands can be run in the pod. If it can't start, remove it; the error contains the reason."""
        left = max(_SHORTEST, self._kind.pending - (time.time() - box.created_at.timestamp()))
        last: list[Json] = []

        def holds(pod: Json | None) -> bool:
            last[:] = [pod] if pod else []
            return pod is not None and (states.runs(pod) or states.waiting(pod).hopeless)

        try:
            found = await self._pod_or_refusal(name, holds, left)
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
            found = last[0] if last else None
        if isinstance(found, dict) and states.runs(found):
            return found
        why = await self._wait_reason(name, found)
        _log.warning("pod did not start, removing it", sandbox=name, why=why.why)
        raise ProviderError(why.fault, f"kubernetes: {name} did not start and {await self._removal(name)}: {why.why}")

    async def _pod_or_refusal(
        self, name: str, holds: Callable[[Json | None], bool], left: float
    ) -> Json | PodWaitReason | None:
        """The pod once `holds` is true of it, or why the controller of its Sandbox can't create it."""
        pod = asyncio.ensure_future(self._objects.until(name, holds, left))
        waits: list[asyncio.Future[Any]] = [pod]
        if self._objects.version:
            waits.append(asyncio.ensure_future(self._objects.refused(name, left)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            refused = None if pod.done() else waits[-1].result()
            return PodWaitReason(refused.fault, str(refused)) if refused else await pod
        finally:
            await cancel_and_wait(waits)

    async def _wait_reason(self, name: str, found: Json | PodWaitReason | None) -> PodWaitReason:
        if isinstance(found, PodWaitReason):
            return found
        if found is not None:
            return states.waiting(found)
        seen = states.refusal_of(await self._objects.sandbox(name))
        why = seen or "check the controller of its Sandbox"
        return PodWaitReason(ProviderFault.TIMED_OUT, f"its controller did not create a pod: {why}")

    async def _removal(self, name: str) -> str:
        """Remove the box. Returns a text for the error about its start: whether it was removed."""
        try:
            await self._objects.remove(name)
        except ProviderError as error:
            _log.warning("pod not removed", sandbox=name, error=str(error))
            return "is not removed yet"
        return "was removed"

    async def _set_up(self, spec: BoxSpec, life: int) -> int:
        """Upload missing files, and open the pod's gate. Returns the life (see `entrypoint`) for which it is open."""
        state = (await self._step(spec.name, entrypoint.state())).out.split()
        if opened := int(state[0]):
            return opened
        if spec.program[0].startswith(WORKER) and state[1] == b"no":
            archive = await cached_archive() if self._worker is None else self._worker
            await self._step(spec.name, entrypoint.unpack_worker(len(archive)), archive)
        files = box_files.pack(spec.files)
        text = entrypoint.unless_open(life) + entrypoint.receive(len(files)) + entrypoint.opened(life)
        await self._step(spec.name, text, files)
        return life

    async def _step(self, name: str, text: str, payload: bytes = b"") -> CommandResult:
        ran = await execution.script(self._objects.cluster, named(name), text, payload)
        if ran.code != 0:
            output = ran.err.decode(errors="replace").strip()[-200:]
            raise ProviderError(
                ProviderFault.TRANSIENT,
                f"kubernetes: preparing {name} failed with status {ran.code}: {output or 'no message'}",
            )
        return ran


def _refuse_ended(box: Box, sandbox: Json | None, pod: Json | None) -> None:
    """Raise `ProviderError` for a box that is being removed, or that its cluster has ended after its program began."""
    if deleted := next((item for item in (sandbox, pod) if states.is_deleted(item)), None):
        message = not_removed(deleted["metadata"]["name"], states.finalizers(deleted))
        raise ProviderError(ProviderFault.TRANSIENT, f"{message}; retry later")
    if box.state is BoxState.FAILED and box.runs:
        raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {box.problem}")
