"""`sandherd identity` and `sandherd provision`: what a deployment is set up with."""

from pathlib import Path
from typing import Annotated

import typer

from sandherd.client.cli.options import Format, Output, example, group

app = group("The keys and credentials of a deployment: init, push.", "sandherd identity init ./identity")
PROVISION_EXAMPLE = example("sandherd provision", "sandherd provision --replicas 3 --identity herd/identity")
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long the broker is waited for.", min=0)]
Port = Annotated[int, typer.Option(min=1, max=65535, metavar="PORT")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder; keep it where nobody reads.")]


@app.callback()
def identity() -> None:
    """The keys and credentials of a deployment: init, push."""


@app.command(
    "init", epilog=example("sandherd identity init ./identity", "sandherd identity init ./identity --project web")
)
def init_identity(
    directory: Directory,
    *,
    project: Annotated[
        list[str] | None,
        typer.Option("--project", metavar="NAME", help="A project that gets a client; again for more [default]."),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="PATH", help="Where the broker will keep its files.")
    ] = "/data",
    port: Port = 4222,
    websocket_port: Port = 8080,
    monitor_port: Port = 8222,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="The provisioner's credential may also change streams that exist."),
    ] = False,
    output: Output = Format.TABLE,
) -> int:
    """Make the keys, credentials and broker configuration of a deployment.

    What is there is kept; rights are brought up to this version's. Nothing is asked for or told over any network.
    The provisioner's credential is accepted for an hour, and is replaced when less than half of that is left.
    """
    import time

    from sandherd.bus.identity.deployment import Deployment, Ports
    from sandherd.client.cli.printing import answer
    from sandherd.client.deployment import making
    from sandherd.client.errors import checked_name

    projects = [checked_name(name, "project") for name in project or ["default"]]
    ports = Ports(nats=port, websocket=websocket_port, monitor=monitor_port)
    with making(directory):
        made = Deployment(directory, data=data, ports=ports).make(projects, int(time.time()), changes=allow_changes)
    rows = [(str(directory / folder), str(state)) for folder, state in made.items()]
    answer(output, [{"path": path, "state": state} for path, state in rows], ("PATH", "STATE"), rows)
    return 0


@app.command("push", epilog=example("sandherd identity push ./identity"))
def push_identity(ctx: typer.Context, directory: Directory, *, wait: Wait = 60, output: Output = Format.TABLE) -> int:
    """Give a running broker the accounts' rights as `init` has brought them up to date.

    The account of sandboxes is given by the spawner when it starts, with the credentials that it has taken back.
    """
    import asyncio

    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import where
    from sandherd.client.deployment import push_accounts
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    names = asyncio.run(push_accounts(where(ctx).nats_url, directory, wait))
    answer(output, [{"account": name} for name in names], ("ACCOUNT",), [(name,) for name in names])
    return 0


def provision(
    ctx: typer.Context,
    *,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, max=5, help="On how many servers; else as it is, or one.")
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", metavar="DIR", help="The herd's keys, to change what exists, too."),
    ] = None,
    wait: Wait = 60,
    output: Output = Format.TABLE,
) -> int:
    """Make streams and buckets on the broker, or bring them and their consumers up to this version.

    With the provisioner's credential, which `sandherd identity init` makes for an hour, it creates what is missing; the
    spawner creates missing consumers. With --identity, the folder of the herd's root keys, it also changes what exists
    and is not as declared. What is stored stays.
    """
    import asyncio
    from datetime import UTC, datetime

    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import where
    from sandherd.client.deployment import access_of, access_with_keys, set_up
    from sandherd.telemetry import logs

    logs.configure("client", "critical")
    context = where(ctx)
    access = access_with_keys(identity) if identity else access_of(context.credentials, datetime.now(UTC))
    done = asyncio.run(set_up(context, access, replicas, wait))
    rows = [(one.thing, str(one.did)) for one in done]
    answer(output, [{"thing": thing, "state": state} for thing, state in rows], ("THING", "STATE"), rows)
    return 0
