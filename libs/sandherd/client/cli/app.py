"""The `sandherd` command, put together."""

from pathlib import Path
from typing import Annotated

import typer

from sandherd.client.cli import (
    approvals,
    backup,
    config,
    credentials,
    dead,
    deployment,
    doctor,
    giving,
    harnesses,
    images,
    past,
    sandboxes,
    secrets,
    stack,
    subscriptions,
    tasks,
    within,
)
from sandherd.client.cli.options import Place, example

app = typer.Typer(
    help="Run herds of coding agents in sandboxes, and see, keep and steer everything they do.",
    epilog=example("sandherd up", 'sandherd run "Compute C(50, 25)" -- python3 agent.py'),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def place(
    ctx: typer.Context,
    nats_url: Annotated[str | None, typer.Option("--nats-url", metavar="URL", help="Where the broker is.")] = None,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", metavar="FILE", help="A NATS .creds file.")
    ] = None,
    home: Annotated[Path | None, typer.Option("--home", metavar="DIR", help="The local stack's directory.")] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="A YAML file with settings; else SANDHERD_CONFIG, else the stack's."
        ),
    ] = None,
) -> None:
    """Run herds of coding agents in sandboxes, and see, keep and steer everything they do."""
    ctx.obj = Place(nats_url, credentials, home, config_file)


app.command(epilog=stack.UP_EXAMPLE)(stack.up)
app.command(epilog=stack.DOWN_EXAMPLE)(stack.down)
app.command(epilog=stack.STATUS_EXAMPLE)(stack.status)
app.command(epilog=giving.RUN_EXAMPLE)(giving.run)
app.add_typer(tasks.app, name="tasks")
app.add_typer(sandboxes.app, name="sandboxes")
app.command("exec", epilog=within.EXEC_EXAMPLE)(within.exec_)
app.command(epilog=within.CP_EXAMPLE)(within.cp)
app.command(epilog=within.LS_EXAMPLE)(within.ls)
app.command("agent-server", epilog=within.SERVER_EXAMPLE)(within.agent_server)
app.command(epilog=within.RUNTIMES_EXAMPLE)(within.runtimes)
app.command(epilog=past.EVENTS_EXAMPLE)(past.events)
app.command(epilog=past.TRAJECTORY_EXAMPLE)(past.trajectory)
app.command(epilog=past.LOGS_EXAMPLE)(past.logs)
app.command(epilog=giving.SEND_EXAMPLE)(giving.send)
app.add_typer(approvals.app, name="approvals")
app.command(epilog=past.AUDIT_EXAMPLE)(past.audit)
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(credentials.app, name="credentials")
app.add_typer(secrets.app, name="secrets")
app.add_typer(dead.app, name="dead")
app.add_typer(harnesses.app, name="harness")
app.add_typer(images.app, name="image")
app.add_typer(deployment.app, name="identity")
app.command(epilog=deployment.PROVISION_EXAMPLE)(deployment.provision)
app.command(epilog=backup.BACKUP_EXAMPLE)(backup.backup)
app.command(epilog=backup.RESTORE_EXAMPLE)(backup.restore)
app.command(epilog=backup.REPLAY_EXAMPLE)(backup.replay)
app.add_typer(config.app, name="config")
app.command(epilog=doctor.EXAMPLE)(doctor.doctor)
