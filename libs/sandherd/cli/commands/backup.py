"""`sandherd backup`, `restore` and `reread`: back up, restore and read again the data of the broker.

They need the herd's keys.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandherd.cli.options import Format, Output, example

if TYPE_CHECKING:
    from sandherd.client.context import Context

BACKUP_EXAMPLE = example("sandherd backup ./monday", "sandherd backup ./monday --identity herd/identity -o json")
RESTORE_EXAMPLE = example("sandherd restore ./monday", "sandherd restore ./monday --identity herd/identity")
REREAD_EXAMPLE = example("sandherd reread", "sandherd reread --identity herd/identity -o json")
_NO_MESSAGES = "0 messages"
Keys = Annotated[
    Path | None,
    typer.Option("--identity", metavar="DIR", help="Folder with the herd's keys [default: that of the local stack]."),
]


def backup(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder. Its contents are secret.")],
    *,
    identity: Keys = None,
    with_secrets: Annotated[
        bool,
        typer.Option("--with-secrets", help="Include the keys with which secrets of unfinished tasks are encrypted."),
    ] = False,
    output: Output = Format.TABLE,
) -> int:
    """Back up a herd into a folder: every stream and bucket, with the consumers and their positions.

    The backup of a local stack also has the history and the keys. The stack is stopped for the backup and started
    again; its agents keep working. The backup of a deployment (NATS_URL, --identity) has only the streams and buckets:
    stop its services first, and back up Postgres separately. Without --with-secrets, unfinished tasks with secrets fail
    after a restore, and have to be submitted again.
    """
    import asyncio

    from sandherd.admin.backup import back_up
    from sandherd.cli.status_line import StatusLine

    context = _context_of(ctx)
    with StatusLine("connecting") as activity:
        options: Any = {"with_secrets": with_secrets, "on_step": activity.step}
        if _is_local(context, identity):
            from sandherd.admin.stack_backup import back_up_stack

            stream_states = asyncio.run(back_up_stack(context.home, directory, **options))
        else:
            stream_states = asyncio.run(back_up(context, identity or context.home / "identity", directory, **options))
    _show(output, stream_states)
    return 0


def restore(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder written by `sandherd backup`.")],
    *,
    identity: Keys = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            min=1,
            max=5,
            help="Number of stream replicas, for a local stack 1 or 3 [default: that of the backup].",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Restore a backup of a local stack to a new home, or a backup of a deployment to a broker without its streams.

    Stop the services first. Nothing is overwritten; a second restore changes nothing. Afterwards start a local stack
    with `sandherd up`. The state is `as it was` if the broker had the same stream already, with or without messages. It
    is `empty` if a stream without messages was restored, with its positions.
    """
    import asyncio

    from sandherd.admin.backup import restore_streams
    from sandherd.cli.status_line import StatusLine

    context = _context_of(ctx)
    with StatusLine("connecting") as activity:
        if _is_local(context, identity) and _has_stack(directory):
            from sandherd.admin.stack_backup import restore_stack

            stream_states = asyncio.run(restore_stack(context.home, directory, replicas, on_step=activity.step))
        else:
            keys = identity or context.home / "identity"
            stream_states = asyncio.run(restore_streams(context, keys, directory, replicas, on_step=activity.step))
    _show(output, stream_states if output.is_json else _restored_rows(stream_states))
    return 0


def reread(ctx: typer.Context, *, identity: Keys = None, output: Output = Format.TABLE) -> int:
    """Make event-ingest read again all events that the broker still stores.

    Use it after restoring a database that is older than the broker's streams. No event is stored twice.
    """
    import asyncio

    from sandherd.admin.backup import read_again
    from sandherd.cli.render.console import print_list

    context = _context_of(ctx)
    count = asyncio.run(read_again(context, identity or context.home / "identity"))
    print_list(output, {"events": count}, ("EVENTS",), [(str(count),)])
    return 0


def _is_local(context: "Context", identity: Path | None) -> bool:
    """Whether the command is for the local stack: neither another broker nor other keys were named."""
    return identity is None and context.sources.get("nats_url") in {"default", "context"}


def _has_stack(directory: Path) -> bool:
    from sandherd.admin.stack_backup import has_stack

    return has_stack(directory)


def _context_of(ctx: typer.Context) -> "Context":
    from sandherd.cli.herd_session import command_context
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    return command_context(ctx)


def _restored_rows(stream_states: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The streams and their states, with the state `empty` instead of `0 messages`."""
    return [(name, "empty" if state == _NO_MESSAGES else state) for name, state in stream_states]


def _show(output: Format, stream_states: Sequence[tuple[str, str]]) -> None:
    from sandherd.cli.render.console import print_list

    print_list(
        output, [{"stream": name, "state": state} for name, state in stream_states], ("STREAM", "STATE"), stream_states
    )
