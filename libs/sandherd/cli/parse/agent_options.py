"""Options of `sandherd run` for the agent: its harness, its model, its tools, and an earlier task to resume."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandherd.client.tasks.resume import ResumeSource

Harness = Annotated[
    str | None,
    typer.Option(
        "--harness",
        help="Kind of agent: command, claude, openhands, acp, or a plugin's; see docs/harnesses.md "
        "[default: command if a program is given, else the project's default].",
    ),
]
Model = Annotated[str | None, typer.Option("--model", help="Model, for claude and openhands.")]
Ask = Annotated[
    list[str] | None,
    typer.Option(
        "--ask", metavar="TOOL", help="Require a user's approval for this tool; `*` is every tool. Repeatable."
    ),
]
Deny = Annotated[list[str] | None, typer.Option("--deny", metavar="TOOL", help="Do not allow this tool; repeatable.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Another field of the harness, such as max_turns=20; repeatable."
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="TASK",
        help="Continue the session of this earlier task, in its work tree if the work tree was stored.",
    ),
]
Attempt = Annotated[
    int | None,
    typer.Option(
        "--resume-attempt",
        metavar="N",
        help="Attempt of the --resume task [default: its last attempt with a session].",
        min=1,
    ),
]
Fork = Annotated[
    bool, typer.Option("--fork", help="With --resume: continue in a copy of the session; the original does not change.")
]
SessionOnly = Annotated[
    bool, typer.Option("--session-only", help="With --resume: start with an empty work tree anyway.")
]

KeepWork = Annotated[
    bool, typer.Option("--keep-work", help="Also store the work tree of a completed task, for a later --resume.")
]


def resume_source(task: str | None, attempt: int | None, *, fork: bool, work: bool) -> "ResumeSource | None":
    """The session to resume, from these options; None if no option is given.

    Raises `HerdError` if options are given without a task, or a name is invalid.
    """
    if task is None and attempt is None and not fork and work:
        return None
    from sandherd.client.errors import HerdError, validated
    from sandherd.client.tasks.resume import ResumeSource
    from sandherd.contracts.errors import Code

    if task is not None:
        return validated(ResumeSource, task=task, attempt=attempt, fork=fork, work=work)
    remedy = "name the earlier task with --resume TASK"
    raise HerdError.of(Code.INVALID_FIELD, "no task to resume is given", field="resume", remedy=remedy)
