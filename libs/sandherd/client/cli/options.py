"""What the commands have in common: their options, the examples in their help, and where the herd is."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


class Priority(StrEnum):
    """How urgent a task is; `contracts.specs.Priority`."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Voice(StrEnum):
    """As whose word an agent is to take what is said to it."""

    USER = "user"
    NUDGE = "nudge"
    SYSTEM = "system"


class OnRetry(StrEnum):
    """What a new attempt gets of the last one's work tree; `contracts.specs.TaskSpec.on_retry`."""

    OFFER = "offer"
    RESTORE = "restore"


@dataclass(frozen=True)
class Place:
    """Where the herd is, as far as the command line says."""

    nats_url: str | None = None
    credentials: Path | None = None
    home: Path | None = None
    config: Path | None = None
    """The settings file; without it, the one that `SANDHERD_CONFIG` names, else that of the stack of this home."""


def _safe_task(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "task")


def safe_sandbox(name: str | None) -> str | None:
    """A sandbox's name, if one is given and it is safe. Raises `HerdError` before anything is connected or sent."""
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "sandbox")


Output = Annotated[Format, typer.Option("-o", "--output", help="For people, or for programs.")]
Project = Annotated[str | None, typer.Option("--project", help="The project it is about.", metavar="NAME")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, to the end.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="How many at the most.", min=1, max=1000)]
Cursor = Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.", metavar="CURSOR")]
Past = Annotated[bool, typer.Option("--past", help="Ask the history instead of what is live.")]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="A task's name.", callback=_safe_task)]
SandboxName = Annotated[str, typer.Argument(metavar="SANDBOX", help="A sandbox's name.", callback=safe_sandbox)]
Runtime = Annotated[
    str | None,
    typer.Option("--runtime", metavar="NAME", help="Where the sandbox is made; else where the herd is set to."),
]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="NAME", help="What it is made of, where a runtime makes them of images."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A named kind of sandbox; see `sandherd runtimes`.")
]
Memory = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="What the sandbox may use: 512m, 4g.")]
Cores = Annotated[
    float | None, typer.Option("--cores", metavar="NUMBER", help="How many cores it may keep busy: 2, 0.5.", min=0.05)
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="A text file for the work tree; again for more. It keeps the folders of a relative path; "
        "an absolute one, or one with .., becomes its last name.",
    ),
]
AgentServer = Annotated[
    bool, typer.Option("--agent-server", help="Run the OpenHands agent server in it; see `sandherd agent-server`.")
]
Env = Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="A variable; again for more.")]
SecretEnv = Annotated[
    list[str] | None,
    typer.Option("--secret-env", metavar="K=V", help="A variable kept out of events; K alone copies yours."),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="VARIABLE[=NAME]",
        help="A variable with the value of a named secret (`sandherd secrets`); NAME alone is both. Again for more.",
    ),
]


def example(*commands: str) -> str:
    """The end of a command's help: examples that can be copied."""
    title = "Example" if len(commands) == 1 else "Examples"
    return "\b\n" + "\n".join([f"{title}:", *(f"  {command}" for command in commands)])


def group(says: str, *commands: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(help=says, epilog=example(*commands), rich_markup_mode=None, no_args_is_help=False)
