"""How the OpenHands agent server is run: its program, its variables, and where it keeps its own."""

from pathlib import Path
from typing import Final

from sandherd.contracts.events.serving import AgentServerFailed
from sandherd.contracts.serving import AgentServer
from sandherd.contracts.specs import SandboxSpec
from sandherd_worker.agents import environment
from sandherd_worker.assignment import Assignment
from sandherd_worker.parts import Parts
from sandherd_worker.processes import EXEC_VARIABLE
from sandherd_worker.serving.life import FAMILY, Life, Pace, What
from sandherd_worker.serving.supervising import Supervisor
from sandherd_worker.serving.told import FILE, Told
from sandherd_worker.toolchains import NoToolchainError, interpreter

_SETTINGS: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the internet for prices while it is imported
    "OH_ENABLE_VSCODE": "0",
    "OH_PRELOAD_TOOLS": "0",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_SHARE_OF_GRACE: Final = 0.2
"""How much of the runtime's grace it gets; it needs none of it once its conversations are at rest."""
_LONGEST_PLACE: Final = 50
"""A terminal's socket has a long name there, and the kernel takes no path of more than 107 characters."""


async def make(parts: Parts, spec: SandboxSpec, wanted: AgentServer) -> Supervisor | None:
    """What keeps it running; None if there is no such program here, which is said. Raises `SpoolError`, `OSError`."""
    who, key = parts.who, parts.server_key
    told = Told(who.state_dir / FILE, wanted.kind, key)
    try:
        python = interpreter(who, wanted.kind)
    except NoToolchainError as error:
        told.write("failed", starts=0, error=str(error))
        await parts.emitter.emit(AgentServerFailed(kind=wanted.kind, error=str(error)))
        return None
    folder = who.state_dir / "agent-server"
    folder.mkdir(mode=0o700, exist_ok=True)
    what = What(
        argv=lambda port: [
            *(str(python), "-P", "-m", "openhands.agent_server", "--host", who.listen, "--port", str(port)),
        ],
        environment=lambda: variables(spec, who, key, folder),
        folder=who.work_dir,
        listen=who.listen,
        ports=who.ports,
    )
    pace = Pace(start=wanted.start_seconds, grace=who.stop_grace * _SHARE_OF_GRACE)
    return Supervisor(
        lambda stop: Life(what, pace, parts.reaper, parts.families, stop),
        told,
        parts.emitter.emit,
        restarts=wanted.restarts,
        pace=pace,
    )


def variables(spec: SandboxSpec, who: Assignment, key: str, folder: Path) -> dict[str, str]:
    """Its whole environment: that of the sandbox's commands, its settings, its key, and whose it is."""
    own = {
        "HOME": str(folder),
        "OH_SESSION_API_KEYS_0": key,
        "OH_CONVERSATIONS_PATH": str(folder / "conversations"),
        "OH_BASH_EVENTS_DIR": str(folder / "bash_events"),
        "OH_CONVERSATION_WORKTREE_ROOT": str(folder / "worktrees"),
        "OH_WORKSPACE_PATH": str(who.work_dir),
        EXEC_VARIABLE: FAMILY,
    }
    if len(str(folder)) < _LONGEST_PLACE:
        own["TMUX_TMPDIR"] = str(folder)
    return {**environment(spec, who), **_SETTINGS, **own}
