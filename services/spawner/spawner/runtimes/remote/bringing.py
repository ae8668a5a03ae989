"""From nothing to a box: the runtime is started and waited for, and gets the worker, its files and its program."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spawner.runtimes.boxes.bundle import COMPILE, WORKER, kept
from spawner.runtimes.boxes.furnishing import ROOT, listed
from spawner.runtimes.boxes.provider import BoxSpec, ProviderError, ProviderFault
from spawner.runtimes.boxes.retrying import USUAL, Patience
from spawner.runtimes.remote import answers, scripts
from spawner.runtimes.remote.answers import Runtime
from spawner.runtimes.remote.calls import AgentServer, Http, RuntimeApi
from spawner.runtimes.remote.transfers import place

_PACKED: Final = f"{ROOT}/run/worker.tar.gz"
_UNPACKING: Final = 300.0
_ENVIRONMENT: Final = {
    "OH_ENABLE_VSCODE": "0",
    "OH_PRELOAD_TOOLS": "0",
    "OH_BASH_EVENTS_RETENTION_SECONDS": "600",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""An agent server that does no more than it is asked for, and asks nobody else."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How this account's runtimes are to be made. `herd`: whose news are told; None, everybody's."""

    image: str
    command: str
    factor: int = 1
    factor_gb: float = 4
    runtime_class: str | None = None
    keep_alive: bool = True
    init_timeout: float = 300.0
    herd: str | None = None
    poll: float = 1.0
    patience: Patience = USUAL


def wanted(spec: BoxSpec, session: str, kind: Kind) -> dict[str, Any]:
    """What the Runtime API is asked for. Pure."""
    return {
        "image": spec.image or kind.image,
        "command": kind.command,
        "working_dir": "/",
        "environment": dict(_ENVIRONMENT),
        "session_id": session,
        "resource_factor": answers.factor(spec.limits, kind.factor, kind.factor_gb),
        "run_as_user": 10001,
        "fs_group": 10001,
        "image_pull_policy": "IfNotPresent",
        **answers.runtime_class(kind.runtime_class),
    }


async def well(api: RuntimeApi, http: Http, session: str, kind: Kind) -> Runtime:
    """The runtime once its agent server answers. One that will never come is stopped, so that nothing of it is left."""
    seen, wait = "nothing is there", 0.05
    try:
        async with asyncio.timeout(kind.init_timeout):
            while True:
                runtime = await api.of_session(session)
                if runtime is not None:
                    await _give_up(api, runtime)
                    if runtime.ready and runtime.url and await AgentServer(http, runtime).is_well():
                        return runtime
                    seen = f"it is {runtime.status}, its pod {runtime.pod_status or 'unknown'}"
                await asyncio.sleep(wait)
                wait = min(2.0, wait * 1.5)
    except TimeoutError as error:
        await _stop(api, session)
        told = f"remote: {session} did not come within {kind.init_timeout:g} s: {seen}"
        raise ProviderError(ProviderFault.TIMED_OUT, told) from error


async def _give_up(api: RuntimeApi, runtime: Runtime) -> None:
    """Raises `ProviderError` for what comes to nothing."""
    if runtime.lacks_image:
        await api.tell(runtime, "stop")
        told = f"remote: {runtime.session_id}: its image can't be pulled; name one that it may pull"
        raise ProviderError(ProviderFault.REFUSED, told)
    if runtime.fallen:
        await api.tell(runtime, "stop")
        why = f": {runtime.reasons}" if runtime.reasons else ""
        told = f"remote: {runtime.session_id}: its pod is {runtime.pod_status or runtime.status}{why}"
        raise ProviderError(ProviderFault.TRANSIENT, told)


async def _stop(api: RuntimeApi, session: str) -> None:
    if (runtime := await api.of_session(session)) is not None:
        await api.tell(runtime, "stop")


async def furnish(server: AgentServer, spec: BoxSpec, ports: Sequence[int]) -> None:
    """Give a box that has nothing yet its worker, its files and its program, which is told of the ports it may use."""
    program = spec.program[0]
    found = await server.control(scripts.command("prepare", program))
    if not found.strip():
        await _bring(server, program)
    variables = {**spec.environment, **listed(ports)}
    told = [scripts.program(spec.program, variables), scripts.labels(spec.labels)]
    await place(server, [*spec.files, *told])
    await server.control(scripts.command("launch", "first"))


async def _bring(server: AgentServer, program: str) -> None:
    """The worker, to an image that lacks it."""
    if not program.startswith(f"{WORKER}/"):
        raise ProviderError(ProviderFault.REFUSED, f"remote: the image has no {program}")
    await server.upload(_PACKED, await kept())
    await server.control(scripts.command("unpack", WORKER, _PACKED), _UNPACKING)
    await server.bash(scripts.line(COMPILE), _UNPACKING)  # without, every start compiles it: slow, no fault
