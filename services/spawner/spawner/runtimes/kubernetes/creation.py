"""Creates a box in idempotent steps, because a step may have been done before, and its reply may have been lost."""

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
from spawner.runtimes.kubernetes.manifests import BEGUN, Json, PodOptions, pod_name
from spawner.runtimes.kubernetes.objects import BoxObjects, removal_message
from spawner.runtimes.kubernetes.states import PodWaitReason

_MIN_WAIT_SECONDS: Final = 1.0
"""How long a pod is waited for, even if it has already been pending for longer than permitted."""
_log: Final = logs.get("runtime.kubernetes")


class PodCreation:
    """Creates boxes as pods. `worker`: the worker's archive, for images without it; None: the one installed here."""

    def __init__(self, objects: BoxObjects, options: PodOptions, worker: bytes | None = None) -> None:
        self._objects = objects
        self._options = options
        self._worker = worker

    async def make(self, spec: BoxSpec) -> Box:
        """Create the box and start its program. Raises `ProviderError`, also if the cluster has ended the box."""
        box = await self._create_objects(spec)
        if box.runs:
            return box
        pod = await self._wait_running(spec.name, box)
        life = await self._set_up(spec, states.end_count(pod) + 1)
        await self._objects.note(spec.name, {BEGUN: str(life)})
        objects = await self._objects.read(spec.name)
        created = states.box_of(*objects)
        if created is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {spec.name} was removed during its creation")
        _refuse_ended(created, *objects)
        return created

    async def _create_objects(self, spec: BoxSpec) -> Box:
        version = self._objects.version
        sandbox, pod = await self._objects.read(spec.name)
        if sandbox is None and pod is None:
            body = manifests.sandbox(spec, self._options, version) if version else manifests.pod(spec, self._options)
            await self._objects.make(body)
            sandbox, pod = await self._objects.read(spec.name)
        box = states.box_of(sandbox, pod)
        if box is None:
            raise ProviderError(ProviderFault.TRANSIENT, f"kubernetes: {spec.name} is being removed; retry later")
        if box.labels.get(HERD) != spec.labels.get(HERD):
            message = f"kubernetes: pod {pod_name(spec.name)} is another herd's; remove it, or use another namespace"
            raise ProviderError(ProviderFault.REFUSED, message)
        _refuse_ended(box, sandbox, pod)
        return box

    async def _wait_running(self, name: str, box: Box) -> Json:
        """Wait until commands can be run in the pod. If the pod does not start, remove it, and raise the reason."""
        seconds = max(_MIN_WAIT_SECONDS, self._options.pending - (time.time() - box.created_at.timestamp()))
        last_pod: list[Json] = []

        def condition(pod: Json | None) -> bool:
            last_pod[:] = [pod] if pod else []
            return pod is not None and (states.accepts_commands(pod) or states.wait_reason(pod).hopeless)

        try:
            outcome = await self._pod_or_refusal(name, condition, seconds)
        except ProviderError as error:
            if error.fault is not ProviderFault.TIMED_OUT:
                raise
            outcome = last_pod[0] if last_pod else None
        if isinstance(outcome, dict) and states.accepts_commands(outcome):
            return outcome
        wait = await self._wait_reason(name, outcome)
        _log.warning("pod did not start, removing it", sandbox=name, why=wait.reason)
        message = f"kubernetes: {name} did not start and {await self._remove(name)}: {wait.reason}"
        raise ProviderError(wait.fault, message)

    async def _pod_or_refusal(
        self, name: str, condition: Callable[[Json | None], bool], seconds: float
    ) -> Json | PodWaitReason | None:
        """The pod once `condition` is true of it, or the reason why the controller of its Sandbox can't create it."""
        pod = asyncio.ensure_future(self._objects.until(name, condition, seconds))
        waits: list[asyncio.Future[Any]] = [pod]
        if self._objects.version:
            waits.append(asyncio.ensure_future(self._objects.wait_refused(name, seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            refused = None if pod.done() else waits[-1].result()
            return PodWaitReason(refused.fault, str(refused)) if refused else await pod
        finally:
            await cancel_and_wait(waits)

    async def _wait_reason(self, name: str, outcome: Json | PodWaitReason | None) -> PodWaitReason:
        if isinstance(outcome, PodWaitReason):
            return outcome
        if outcome is not None:
            return states.wait_reason(outcome)
        refusal = states.refusal_of(await self._objects.sandbox(name))
        detail = refusal or "check the controller of its Sandbox"
        return PodWaitReason(ProviderFault.TIMED_OUT, f"its controller did not create a pod: {detail}")

    async def _remove(self, name: str) -> str:
        """Remove the box. Returns the part of an error message that states whether it was removed."""
        try:
            await self._objects.remove(name)
        except ProviderError as error:
            _log.warning("pod not removed", sandbox=name, error=str(error))
            return "is not removed yet"
        return "was removed"

    async def _set_up(self, spec: BoxSpec, life: int) -> int:
        """Upload missing files, and open the pod's gate. Returns the life (see `entrypoint`) for which it is open."""
        state = (await self._run_script(spec.name, entrypoint.print_state())).out.split()
        if open_life := int(state[0]):
            return open_life
        if spec.program[0].startswith(WORKER) and state[1] == b"no":
            archive = await cached_archive() if self._worker is None else self._worker
            await self._run_script(spec.name, entrypoint.unpack_worker(len(archive)), archive)
        files = box_files.pack(spec.files)
        text = entrypoint.exit_if_open(life) + entrypoint.receive(len(files)) + entrypoint.open_gate(life)
        await self._run_script(spec.name, text, files)
        return life

    async def _run_script(self, name: str, text: str, payload: bytes = b"") -> CommandResult:
        result = await execution.script(self._objects.cluster, pod_name(name), text, payload)
        if result.code != 0:
            output = result.err.decode(errors="replace").strip()[-200:]
            raise ProviderError(
                ProviderFault.TRANSIENT,
                f"kubernetes: preparing {name} failed with status {result.code}: {output or 'no message'}",
            )
        return result


def _refuse_ended(box: Box, sandbox: Json | None, pod: Json | None) -> None:
    """Raise `ProviderError` if the box is being removed, or if its cluster has ended it after its program began."""
    if deleted := next((item for item in (sandbox, pod) if states.is_deleted(item)), None):
        message = removal_message(deleted["metadata"]["name"], states.finalizers(deleted))
        raise ProviderError(ProviderFault.TRANSIENT, f"{message}; retry later")
    if box.state is BoxState.FAILED and box.runs:
        raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: {box.problem}")
