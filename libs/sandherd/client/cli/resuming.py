"""Going on from an earlier task, as a command line says it."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandherd.client.resuming import Earlier

Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="TASK",
        help="Go on with the session of this earlier task, and with its work tree where that was kept.",
    ),
]
Attempt = Annotated[
    int | None,
    typer.Option(
        "--resume-attempt", metavar="N", help="The attempt of that task; else the last with a session.", min=1
    ),
]
Fork = Annotated[
    bool, typer.Option("--fork", help="With --resume: a session of its own with that beginning; the old one stays.")
]
SessionOnly = Annotated[
    bool, typer.Option("--session-only", help="With --resume: begin with an empty work tree all the same.")
]

KeepWork = Annotated[
    bool, typer.Option("--keep-work", help="Keep the work tree of a task that is done, too, for a later --resume.")
]


def wanted(task: str | None, attempt: int | None, *, fork: bool, work: bool) -> "Earlier | None":
    """What these options mean; None if there is nothing to go on from. Raises `HerdError` for what means nothing."""
    if task is None and attempt is None and not fork and work:
        return None
    from sandherd.client.errors import HerdError, made
    from sandherd.client.resuming import Earlier
    from sandherd.contracts.errors import Code

    if task is not None:
        return made(Earlier, task=task, attempt=attempt, fork=fork, work=work)
    remedy = "name the earlier task with --resume TASK"
    raise HerdError.of(Code.INVALID_FIELD, "nothing says which task to go on from", field="resume", remedy=remedy)
