"""The configuration of the OpenHands agent server: its program, its environment, and its directories."""

from pathlib import Path
from typing import Final

from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.events.agent_server import AgentServerFailed
from sandherd.contracts.specs import SandboxSpec
from sandherd_worker.agent_server.server_process import FAMILY, HealthCheckIntervals, ServerCommand, ServerProcess
from sandherd_worker.agent_server.supervisor import FILE, StatusFile, Supervisor
from sandherd_worker.assignment import Assignment
from sandherd_worker.harness_factory import environment
from sandherd_worker.processes import EXEC_VARIABLE
from sandherd_worker.toolchains import NoToolchainError, interpreter
from sandherd_worker.worker_resources import WorkerResources

_SETTINGS: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads prices while it is imported
    "OH_ENABLE_VSCODE": "0",
    "OH_PRELOAD_TOOLS": "0",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_SHARE_OF_GRACE: Final = 0.2
"""The server's share of the runtime's grace period. If its conversations are idle, the server ends at once."""
_MAX_SOCKET_DIR_LENGTH: Final = 50
"""Maximum length of the directory of terminal sockets: their names are long, and the kernel limits the whole path to
107 characters."""


async def make(resources: WorkerResources, spec: SandboxSpec, wanted: AgentServer) -> Supervisor | None:
    """The supervisor of the server. If the SDK is not installed, publishes an event about that, and returns None.

    Raises `SpoolError`, `OSError`.
    """
    assignment, key = resources.assignment, resources.server_key
    status = StatusFile(assignment.state_dir / FILE, wanted.kind, key)
    try:
        python = interpreter(assignment, wanted.kind)
    except NoToolchainError as error:
        status.write("failed", starts=0, error=str(error))
        await resources.emitter.emit(AgentServerFailed(kind=wanted.kind, error=str(error)))
        return None
    folder = assignment.state_dir / "agent-server"
    folder.mkdir(mode=0o700, exist_ok=True)
    server_command = ServerCommand(
        argv=lambda port: [
            *(str(python), "-P", "-m", "openhands.agent_server", "--host", assignment.listen, "--port", str(port)),
        ],
        environment=lambda: variables(spec, assignment, key, folder),
        folder=assignment.work_dir,
        listen=assignment.listen,
        ports=assignment.ports,
    )
    pace = HealthCheckIntervals(start=wanted.start_seconds, grace=assignment.stop_grace * _SHARE_OF_GRACE)
    return Supervisor(
        lambda stop: ServerProcess(server_command, pace, resources.reaper, resources.ownership, stop),
        status,
        resources.emitter.emit,
        restarts=wanted.restarts,
        pace=pace,
    )


def variables(spec: SandboxSpec, assignment: Assignment, key: str, folder: Path) -> dict[str, str]:
    """The server's whole environment: that of the sandbox's commands, its settings, its key, and its owner variable."""
    own = {
        "HOME": str(folder),
        "OH_SESSION_API_KEYS_0": key,
        "OH_CONVERSATIONS_PATH": str(folder / "conversations"),
        "OH_BASH_EVENTS_DIR": str(folder / "bash_events"),
        "OH_CONVERSATION_WORKTREE_ROOT": str(folder / "worktrees"),
        "OH_WORKSPACE_PATH": str(assignment.work_dir),
        EXEC_VARIABLE: FAMILY,
    }
    if len(str(folder)) < _MAX_SOCKET_DIR_LENGTH:
        own["TMUX_TMPDIR"] = str(folder)
    return {**environment(spec, assignment), **_SETTINGS, **own}
