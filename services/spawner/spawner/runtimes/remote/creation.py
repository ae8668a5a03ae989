"""Creates a box: waits for the runtime to start, then uploads the worker and the files, and starts the program."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandherd.backoff import Backoff
from spawner.runtimes.boxes.box_files import ROOT, ports_variable
from spawner.runtimes.boxes.provider import BoxSpec, ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import DEFAULT_LIMITS, RetryLimits
from spawner.runtimes.boxes.worker_bundle import COMPILE, WORKER, cached_archive
from spawner.runtimes.remote import replies, scripts
from spawner.runtimes.remote.api_clients import AgentServer, HttpSession, RuntimeApi
from spawner.runtimes.remote.replies import RemoteRuntimeState
from spawner.runtimes.remote.transfers import upload_files

_WORKER_ARCHIVE: Final = f"{ROOT}/run/worker.tar.gz"
_UNPACK_SECONDS: Final = 300.0
_POLL_DELAYS: Final = Backoff(0.05, 2.0, jitter=0)
_ENVIRONMENT: Final = {
    "OH_ENABLE_VSCODE": "0",
    "OH_PRELOAD_TOOLS": "0",
    "OH_BASH_EVENTS_RETENTION_SECONDS": "600",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""The environment variables that disable optional features and outgoing requests of the agent server."""


@dataclass(frozen=True, kw_only=True)
class RemoteRuntimeOptions:
    """Options for the runtimes of this account. `herd`: the herd whose boxes are watched; None: all herds."""

    image: str
    command: str
    """The command line of the agent server."""
    factor: int = 1
    """The minimum resource factor of a runtime."""
    factor_gb: float = 4
    """The memory of a runtime with the resource factor 1, in GB."""
    runtime_class: str | None = None
    keep_alive: bool = True
    init_timeout: float = 300.0
    herd: str | None = None
    poll: float = 1.0
    retries: RetryLimits = DEFAULT_LIMITS


def start_request(spec: BoxSpec, session: str, options: RemoteRuntimeOptions) -> dict[str, Any]:
    """The start request for the Runtime API. Pure."""
    return {
        "image": spec.image or options.image,
        "command": options.command,
        "working_dir": "/",
        "environment": dict(_ENVIRONMENT),
        "session_id": session,
        "resource_factor": replies.resource_factor(spec.limits, options.factor, options.factor_gb),
        "run_as_user": 10001,
        "fs_group": 10001,
        "image_pull_policy": "IfNotPresent",
        **replies.runtime_class(options.runtime_class),
    }


async def wait_ready(
    api: RuntimeApi, http: HttpSession, session: str, options: RemoteRuntimeOptions
) -> RemoteRuntimeState:
    """Wait until the runtime's agent server responds. If the runtime fails or times out, it is stopped."""
    last_state, polls = "it does not exist", 0
    try:
        async with asyncio.timeout(options.init_timeout):
            while True:
                runtime = await api.of_session(session)
                if runtime is not None:
                    await _stop_failed(api, runtime)
                    if runtime.ready and runtime.url and await AgentServer(http, runtime).is_healthy():
                        return runtime
                    last_state = f"it is {runtime.status}, its pod {runtime.pod_status or 'unknown'}"
                await asyncio.sleep(_POLL_DELAYS.delay(polls))
                polls += 1
    except TimeoutError as error:
        await _stop(api, session)
        message = f"remote: {session} was not ready within {options.init_timeout:g} s: {last_state}"
        raise ProviderError(ProviderFault.TIMED_OUT, message) from error


async def _stop_failed(api: RuntimeApi, runtime: RemoteRuntimeState) -> None:
    """If a runtime will never be ready, stop it, and raise `ProviderError`."""
    if runtime.lacks_image:
        await api.change_state(runtime, "stop")
        message = f"remote: {runtime.session_id}: its image can't be pulled; use one that it may pull"
        raise ProviderError(ProviderFault.REFUSED, message)
    if runtime.has_failed:
        await api.change_state(runtime, "stop")
        reasons = f": {runtime.reasons}" if runtime.reasons else ""
        message = f"remote: {runtime.session_id}: its pod is {runtime.pod_status or runtime.status}{reasons}"
        raise ProviderError(ProviderFault.TRANSIENT, message)


async def _stop(api: RuntimeApi, session: str) -> None:
    if (runtime := await api.of_session(session)) is not None:
        await api.change_state(runtime, "stop")


async def set_up(server: AgentServer, spec: BoxSpec, ports: Sequence[int]) -> None:
    """Set up an empty box: upload its worker and files, and start its program. `ports`: the ports that it may use."""
    program = spec.program[0]
    output = await server.control(scripts.command_line("prepare", program))
    if not output.strip():  # the image lacks the program
        await _upload_worker(server, program)
    variables = {**spec.environment, **ports_variable(ports)}
    own_files = [scripts.program_file(spec.program, variables), scripts.labels_file(spec.labels)]
    await upload_files(server, [*spec.files, *own_files])
    await server.control(scripts.command_line("launch", "first"))


async def _upload_worker(server: AgentServer, program: str) -> None:
    """Upload the worker to a box whose image lacks it. Raises `ProviderError` if the program is not the worker."""
    if not program.startswith(f"{WORKER}/"):
        raise ProviderError(ProviderFault.REFUSED, f"remote: the image has no {program}")
    await server.upload(_WORKER_ARCHIVE, await cached_archive())
    await server.control(scripts.command_line("unpack", WORKER, _WORKER_ARCHIVE), _UNPACK_SECONDS)
    await server.bash(
        scripts.shell_line(COMPILE), _UNPACK_SECONDS
    )  # if it fails, each start compiles the worker, which is slower
