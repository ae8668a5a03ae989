"""`sandherd backup`, `restore` and `replay`: everything that the broker keeps, for whoever holds the herd's keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.options import Format, Output, example

if TYPE_CHECKING:
    from sandherd.client.context import Context

BACKUP_EXAMPLE = example("sandherd backup ./monday", "sandherd backup ./monday --identity herd/identity -o json")
RESTORE_EXAMPLE = example("sandherd restore ./monday", "sandherd restore ./monday --identity herd/identity")
REPLAY_EXAMPLE = example("sandherd replay", "sandherd replay --identity herd/identity -o json")
Keys = Annotated[
    Path | None, typer.Option("--identity", metavar="DIR", help="The herd's keys; else those of the local stack.")
]


def backup(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder. What is in it is secret.")],
    *,
    identity: Keys = None,
    with_secrets: Annotated[
        bool,
        typer.Option("--with-secrets", help="Include the keys that secrets of unfinished tasks are encrypted with."),
    ] = False,
    output: Output = Format.TABLE,
) -> int:
    """Put every stream and bucket into a folder, with the consumers and how far they are.

    The services have to be stopped meanwhile. The history is not in it: that is Postgres' own to back up.
    Without --with-secrets, tasks with secrets that were not done fail when it is restored, and are submitted again.
    """
    import asyncio

    from sandherd.client.backing_up import back_up

    context = _place(ctx)
    keys = identity or context.home / "identity"
    _show(output, asyncio.run(back_up(context, keys, directory, with_secrets=with_secrets)))
    return 0


def restore(
    ctx: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `sandherd backup` made.")],
    *,
    identity: Keys = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, max=5, help="On how many servers; else as it was.")
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Put the streams and buckets of a backup into a broker that has none, or whose were never used.

    The services have to be stopped meanwhile. Nothing is written over; done once more, nothing happens.
    """
    import asyncio

    from sandherd.client.backing_up import bring_back

    context = _place(ctx)
    _show(output, asyncio.run(bring_back(context, identity or context.home / "identity", directory, replicas)))
    return 0


def replay(ctx: typer.Context, *, identity: Keys = None, output: Output = Format.TABLE) -> int:
    """Have event-ingest read every event once more that the broker still holds.

    For a database that was restored and is older than the broker's streams. What it knows is not stored twice.
    """
    import asyncio

    from sandherd.client.backing_up import read_again
    from sandherd.client.cli.printing import answer

    context = _place(ctx)
    count = asyncio.run(read_again(context, identity or context.home / "identity"))
    answer(output, {"events": count}, ("EVENTS",), [(str(count),)])
    return 0


def _place(ctx: typer.Context) -> "Context":
    from sandherd.client.cli.talking import where
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    return where(ctx)


def _show(output: Format, done: Sequence[tuple[str, str]]) -> None:
    from sandherd.client.cli.printing import answer

    answer(output, [{"stream": name, "state": state} for name, state in done], ("STREAM", "STATE"), done)
