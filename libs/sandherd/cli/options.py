"""Options shared by the commands, examples for their help, and the location of the herd."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sandherd.cli.completion import all_names, project_names, sandbox_names, secret_variables, task_names


class Format(StrEnum):
    """Output format."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    JSONL = "jsonl"

    @property
    def is_json(self) -> bool:
        """Whether the output is for programs: one JSON document, or with `jsonl` one in each line."""
        return self in {Format.JSON, Format.JSONL}

    @property
    def is_text(self) -> bool:
        """Whether the output is a text for users."""
        return self in {Format.TABLE, Format.WIDE}

    @property
    def shows_truncation(self) -> bool:
        """Whether the output has a field that shows whether there are more items."""
        return self is Format.JSON


class Priority(StrEnum):
    """Priority of a task; `contracts.specs.Priority`."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class TaskKind(StrEnum):
    """Kind of work of a task; `contracts.specs.TaskSpec.kind`."""

    CHANGE = "change"
    DOCS = "docs"
    RESEARCH = "research"
    REVIEW = "review"


class MessageRole(StrEnum):
    """Role in which a message is delivered to an agent."""

    USER = "user"
    NUDGE = "nudge"
    SYSTEM = "system"


class OnRetry(StrEnum):
    """How a new attempt gets the work tree of the last attempt; `contracts.specs.TaskSpec.on_retry`."""

    OFFER = "offer"
    RESTORE = "restore"


@dataclass(frozen=True)
class HerdLocation:
    """Location of the herd, as given on the command line."""

    nats_url: str | None = None
    credentials: Path | None = None
    home: Path | None = None
    config: Path | None = None
    """The settings file. If None, `SANDHERD_CONFIG` names it; else it is the file of the stack in this home."""
    context: str | None = None
    """The name of a context; `local` for the stack in this home."""


def _checked_task(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "task")


def checked_sandbox(name: str | None) -> str | None:
    """Check a sandbox's name, and return it. Raises `HerdError` for an unsafe name, before any connection is made."""
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "sandbox")


def _refuse_name_format(output: Format) -> Format:
    """Refuse `-o name` for output without names. Raises `HerdError`."""
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    if output is Format.NAME:
        raise HerdError.of(
            Code.INVALID_FIELD,
            "-o name is not supported here, as this output has no names",
            field="output",
            remedy="use table, wide, json or jsonl",
        )
    return output


Output = Annotated[
    Format,
    typer.Option(
        "-o", "--output", help="Output format; wide: all columns in full, name: only names, jsonl: one item per line."
    ),
]
NamelessOutput = Annotated[
    Format,
    typer.Option(
        "-o",
        "--output",
        callback=_refuse_name_format,
        help="Output format: table, wide, json or jsonl; not name, as the output has no names.",
    ),
]
"""The option of commands whose output has no names."""
Project = Annotated[
    str | None,
    typer.Option(
        "--project",
        help="Project to use [default: SANDHERD_PROJECT, else from the settings file or context, else default].",
        metavar="NAME",
        autocompletion=project_names,
    ),
]
CreateProject = Annotated[
    bool, typer.Option("--create", help="Create the project that --project names, if it does not exist.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue with new items until the end.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of results.", min=1, max=1000)]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="Cursor of the next page, from the previous page.", metavar="CURSOR")
]
Past = Annotated[bool, typer.Option("--past", help="Query the history instead of the live state.")]
TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A task's name, or its unique beginning (`task-` and at least 6 letters).",
        callback=_checked_task,
        autocompletion=task_names,
    ),
]
SandboxName = Annotated[
    str,
    typer.Argument(
        metavar="SANDBOX",
        help="A sandbox's name, or its unique beginning (`sbx-` and at least 6 letters).",
        callback=checked_sandbox,
        autocompletion=sandbox_names,
    ),
]
SandboxOrTask = Annotated[
    str,
    typer.Argument(
        metavar="SANDBOX|TASK",
        help="Name of a sandbox, or of a task for its live or last sandbox.",
        callback=checked_sandbox,
        autocompletion=all_names,
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option("--runtime", metavar="NAME", help="Runtime of the sandbox [default: the herd's default runtime]."),
]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="NAME", help="Image of the sandbox, for runtimes that use images."),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A named kind of sandbox; see `sandherd runtimes`.")
]
Memory = Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Memory limit of the sandbox: 512m, 4g.")]
Cores = Annotated[
    float | None, typer.Option("--cores", metavar="NUMBER", help="CPU limit of the sandbox in cores: 2, 0.5.", min=0.05)
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="Text file to put into the work tree; repeatable. A relative path is the target path; "
        "an absolute path, or one with `..`, is shortened to its file name.",
    ),
]
AnyFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="File to put into the work tree; repeatable. A relative path is the target path; "
        "an absolute path, or one with `..`, is shortened to its file name.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="PATH",
        help="Folder that is copied into the work tree, without .git, node_modules, .venv, __pycache__ and all files "
        "that match ignore rules of git, of its repository or the user, even if they are tracked; "
        "the result is stored (`sandherd diff`).",
    ),
]
AgentServer = Annotated[
    bool,
    typer.Option("--agent-server", help="Run the OpenHands agent server in the sandbox; see `sandherd agent-server`."),
]
Env = Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="Environment variable; repeatable.")]
SecretEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--secret-env",
        metavar="K=V",
        help="Environment variable with a secret value of at least 4 characters, which is removed from events; "
        "K alone copies the value from your environment.",
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="VARIABLE[=NAME]",
        help="Environment variable set to a named secret (`sandherd secrets`); "
        "if only NAME is given, the variable has the same name. Repeatable.",
        autocompletion=secret_variables,
    ),
]


def example(*commands: str) -> str:
    """The epilog of a command's help: examples to copy."""
    title = "Example" if len(commands) == 1 else "Examples"
    return "\b\n" + "\n".join([f"{title}:", *(f"  {command}" for command in commands)])


def group(description: str, *commands: str) -> typer.Typer:
    """A group of commands. The examples in its help are `commands`."""
    return typer.Typer(help=description, epilog=example(*commands), rich_markup_mode=None, no_args_is_help=False)
