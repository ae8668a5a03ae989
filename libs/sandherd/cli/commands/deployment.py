"""`sandherd identity` and `sandherd provision`: set up a deployment."""

from pathlib import Path
from typing import Annotated

import typer

from sandherd.cli.options import Format, Output, example, group
from sandherd.cli.parse.durations import ONE_MINUTE, Wait

app = group("Keys and credentials of a deployment: init, push.", "sandherd identity init ./identity")
PROVISION_EXAMPLE = example("sandherd provision", "sandherd provision --replicas 3 --identity herd/identity")
_STATE_TEXTS = {"kept": "unchanged"}
"""The texts in tables of states that have another text in JSON."""
Port = Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Port of the broker for clients.")]
WebsocketPort = Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Port for WebSocket clients.")]
MonitorPort = Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Port for the broker's own metrics.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder; keep it private.")]


@app.callback()
def identity() -> None:
    """Keys and credentials of a deployment: init, push."""


@app.command(
    "init", epilog=example("sandherd identity init ./identity", "sandherd identity init ./identity --project web")
)
def init_identity(
    directory: Directory,
    *,
    project: Annotated[
        list[str] | None,
        typer.Option(
            "--project",
            metavar="NAME",
            help="Project for which to create a client credential; repeatable [default: default].",
        ),
    ] = None,
    data: Annotated[str, typer.Option("--data", metavar="PATH", help="Data directory of the broker.")] = "/data",
    port: Port = 4222,
    websocket_port: WebsocketPort = 8080,
    monitor_port: MonitorPort = 8222,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="The provisioner's credential may also change existing streams."),
    ] = False,
    output: Output = Format.TABLE,
) -> int:
    """Create the keys, credentials and broker configuration of a deployment.

    Existing files are kept; permissions are updated to this version. The network is not used.
    The provisioner's credential is valid for one hour, and is replaced when less than half of that is left.
    """
    import time

    from sandherd.admin.deployment import creating
    from sandherd.bus.identity.deployment import Deployment, Ports
    from sandherd.cli.render.console import print_list
    from sandherd.client.errors import checked_name

    projects = [checked_name(name, "project") for name in project or ["default"]]
    ports = Ports(nats=port, websocket=websocket_port, monitor=monitor_port)
    with creating(directory):
        states = Deployment(directory, data=data, ports=ports).make(projects, int(time.time()), changes=allow_changes)
    document = [{"path": str(directory / folder), "state": str(state)} for folder, state in states.items()]
    rows = [(str(directory / folder), _STATE_TEXTS.get(state, str(state))) for folder, state in states.items()]
    print_list(output, document, ("PATH", "STATE"), rows)
    return 0


@app.command("push", epilog=example("sandherd identity push ./identity"))
def push_identity(
    ctx: typer.Context, directory: Directory, *, wait: Wait = ONE_MINUTE, output: Output = Format.TABLE
) -> int:
    """Push the permissions of accounts, which `init` has updated, to a running broker.

    The spawner pushes the account of sandboxes when it starts, with the list of revoked credentials.
    """
    import asyncio

    from sandherd.admin.deployment import push_accounts
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.render.console import print_list
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    names = asyncio.run(push_accounts(command_context(ctx).nats_url, directory, wait))
    print_list(output, [{"account": name} for name in names], ("ACCOUNT",), [(name,) for name in names])
    return 0


def provision(
    ctx: typer.Context,
    *,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, max=5, help="Number of stream replicas [default: unchanged, or 1]."),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", metavar="DIR", help="Folder with the herd's keys, to also change existing streams."),
    ] = None,
    wait: Wait = ONE_MINUTE,
    output: Output = Format.TABLE,
) -> int:
    """Create streams and buckets on the broker, or update them and their consumers to this version.

    With the provisioner's credential, which `sandherd identity init` makes valid for one hour, it creates missing
    streams and buckets; the spawner creates missing consumers. With --identity, the folder of the herd's root keys, it
    also changes existing ones that differ from their declaration. Stored messages are not deleted.
    """
    import asyncio
    from datetime import UTC, datetime

    from sandherd.admin.deployment import access_of, access_with_keys, set_up
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.render.console import print_list
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    context = command_context(ctx)
    access = access_with_keys(identity) if identity else access_of(context.credentials, datetime.now(UTC))
    changes = asyncio.run(set_up(context, access, replicas, wait))
    document = [{"thing": change.thing, "state": str(change.did)} for change in changes]
    rows = [(change.thing, _STATE_TEXTS.get(change.did, str(change.did))) for change in changes]
    print_list(output, document, ("THING", "STATE"), rows)
    return 0
