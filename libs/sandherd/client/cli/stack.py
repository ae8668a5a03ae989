"""`sandherd up`, `down` and `status`: the stack on this machine."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandherd.client.cli.options import Format, Output, example
from sandherd.client.terminal_text import put

if TYPE_CHECKING:
    from sandherd.stack import Ended, PartStatus, StackStatus

UP_EXAMPLE = example("sandherd up", "sandherd --home ./herd --config herd.yaml up", "sandherd up --nats 3")
DOWN_EXAMPLE = example("sandherd down")
STATUS_EXAMPLE = example("sandherd status", "sandherd status -o json")
HEADER = ("PART", "STATE", "PID", "RESTARTS", "HTTP", "DETAIL")


def up(
    ctx: typer.Context,
    *,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until every part is ready.")] = True,
    nats: Annotated[
        int | None, typer.Option("--nats", metavar="N", help="How many nats-servers: 1 or 3; for ever the same.")
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Start everything on this machine.

    That is broker, database and services. What runs already is left as it is. Of three nats-servers any one may be
    lost: each keeps everything.
    """
    place = _local_stack()
    work = partial(place.stack.up, wait=wait, config=place.config_of(ctx), nats=nats)
    return int(place.on_stack(ctx, work, lambda found: _show(found, output, complete=wait)))


def down(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """End everything on this machine.

    Agents at work are stopped, and their tasks have failed (`stopped`). What was kept is there again after the next
    `sandherd up`, and tasks that were waiting are begun then.
    """
    place = _local_stack()
    return int(place.on_stack(ctx, place.stack.down, lambda found: _show_end(found, output)))


def status(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """What runs on this machine.

    The exit status is 1 if something of it is not ready.
    """
    place = _local_stack()
    return int(place.on_stack(ctx, place.stack.status, lambda found: _show(found, output, complete=True)))


def _local_stack() -> Any:
    """The client's side of the stack. Raises `HerdError` where only the client is installed."""
    try:
        from sandherd.client.cli import local
    except ModuleNotFoundError as error:
        from sandherd.client.errors import HerdError
        from sandherd.contracts.errors import Code

        raise HerdError.of(
            Code.UNAVAILABLE,
            f"the stack is not installed here ({error.name} is missing)",
            remedy="install it with `pip install 'sandherd[stack]'`",
        ) from None
    return local


def _show(found: "StackStatus", output: Format, *, complete: bool) -> int:
    from sandherd.client.cli.leaving import complain
    from sandherd.client.cli.local import plain_status
    from sandherd.client.cli.printing import document, table

    if output is Format.JSON:
        document(plain_status(found))
    else:
        put(f"{found.phase}  {found.home}" + (f"  {found.nats_url}" if found.nats_url else ""))
        if found.parts:
            table(HEADER, [_row(part) for part in found.parts])
    if found.ready or not complete:
        return 0
    complain(_trouble(found))
    return 1


def _show_end(found: "Ended", output: Format) -> int:
    from sandherd.client.cli.leaving import complain
    from sandherd.client.cli.printing import document

    if output is Format.JSON:
        document({"home": str(found.home), "ended": found.names, "sandboxes_left": found.sandboxes_left})
    else:
        put(f"ended {', '.join(found.names)}" if found.was_running else "nothing was running")
    if found.sandboxes_left:
        complain(f"sandboxes may still run; see {found.home / 'logs' / 'spawner.log'}, and try again")
    return 1 if found.sandboxes_left else 0


def _row(part: "PartStatus") -> list[object]:
    state = "ready" if part.ready else "running" if part.running else "down"
    return [part.name, state, part.pid, part.restarts, part.http, part.detail]


def _trouble(found: "StackStatus") -> str:
    if not any(part.running for part in found.parts):
        return "nothing runs here; start it with `sandherd up`"
    if found.phase == "unsupervised":
        return "nobody looks after the stack: its supervisor was killed; `sandherd up` starts it anew, and agents go on"
    tired = [part.name for part in found.parts if not part.ready]
    what = f"{', '.join(tired)} not ready" if tired else f"the stack is {found.phase}"
    return f"{what}; the logs are in {found.home / 'logs'}, and `sandherd doctor` looks further"
