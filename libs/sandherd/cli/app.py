"""The `sandherd` command and its subcommands, as a table of modules. A call imports only the module that it needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sandherd.cli.completion import context_names
from sandherd.cli.options import HerdLocation, example
from sandherd.cli.trailing_command import DescribedProgram, TrailingCommand
from sandherd.client.terminal_text import write_text

_PACKAGE: Final = "sandherd.cli.commands"


@dataclass(frozen=True)
class CommandEntry:
    """The module and attribute of a command's function; without an `epilog`, those of a group of commands."""

    module: str
    attribute: str = "app"
    epilog: str | None = None
    parser: type[DescribedProgram | TrailingCommand] | None = None
    """The class that parses the command line, if it is not parsed as usual."""

    def register(self, app: typer.Typer, name: str) -> None:
        """Import the command or group, and add it to `app`."""
        module = import_module(f"{_PACKAGE}.{self.module}")
        target: Any = getattr(module, self.attribute)
        if self.epilog is None:
            app.add_typer(target, name=name)
        else:
            app.command(name, cls=self.parser, epilog=getattr(module, self.epilog))(target)


COMMANDS: Final[Mapping[str, CommandEntry]] = {
    "up": CommandEntry("stack", "up", "UP_EXAMPLE"),
    "down": CommandEntry("stack", "down", "DOWN_EXAMPLE"),
    "status": CommandEntry("stack", "status", "STATUS_EXAMPLE"),
    "services": CommandEntry("services"),
    "run": CommandEntry("run", "run", "RUN_EXAMPLE", DescribedProgram),
    "tasks": CommandEntry("tasks"),
    "sandboxes": CommandEntry("sandboxes"),
    "top": CommandEntry("overview", "top", "TOP_EXAMPLE"),
    "costs": CommandEntry("overview", "costs", "COSTS_EXAMPLE"),
    "overview": CommandEntry("history", "overview", "OVERVIEW_EXAMPLE"),
    "stats": CommandEntry("history", "stats", "STATS_EXAMPLE"),
    "compare": CommandEntry("history", "compare", "COMPARE_EXAMPLE"),
    "search": CommandEntry("history", "search", "SEARCH_EXAMPLE"),
    "replay": CommandEntry("history", "replay", "REPLAY_EXAMPLE"),
    "history": CommandEntry("retention"),
    "exec": CommandEntry("execution", "exec_", "EXEC_EXAMPLE", TrailingCommand),
    "cp": CommandEntry("execution", "cp", "CP_EXAMPLE"),
    "ls": CommandEntry("execution", "ls", "LS_EXAMPLE"),
    "port-forward": CommandEntry("execution", "port_forward", "FORWARD_EXAMPLE"),
    "files": CommandEntry("task_files", "files", "FILES_EXAMPLE"),
    "diff": CommandEntry("task_files", "diff", "DIFF_EXAMPLE"),
    "branches": CommandEntry("branches"),
    "artifacts": CommandEntry("artifacts"),
    "agent-server": CommandEntry("execution", "agent_server", "SERVER_EXAMPLE"),
    "runtimes": CommandEntry("execution", "runtimes", "RUNTIMES_EXAMPLE"),
    "events": CommandEntry("events", "events", "EVENTS_EXAMPLE"),
    "trajectory": CommandEntry("events", "trajectory", "TRAJECTORY_EXAMPLE"),
    "transcript": CommandEntry("history", "transcript", "TRANSCRIPT_EXAMPLE"),
    "logs": CommandEntry("events", "logs", "LOGS_EXAMPLE"),
    "send": CommandEntry("messages", "send", "SEND_EXAMPLE"),
    "approvals": CommandEntry("approvals"),
    "monitor": CommandEntry("monitor"),
    "audit": CommandEntry("events", "audit", "AUDIT_EXAMPLE"),
    "subscriptions": CommandEntry("subscriptions"),
    "webhooks": CommandEntry("webhooks"),
    "credentials": CommandEntry("credentials"),
    "secrets": CommandEntry("secrets"),
    "tokens": CommandEntry("tokens"),
    "open": CommandEntry("sign_in", "open_", "OPEN_EXAMPLE"),
    "projects": CommandEntry("projects"),
    "budgets": CommandEntry("budgets"),
    "schedules": CommandEntry("schedules"),
    "dead": CommandEntry("dead_letters"),
    "harness": CommandEntry("harnesses"),
    "image": CommandEntry("images"),
    "identity": CommandEntry("deployment"),
    "provision": CommandEntry("deployment", "provision", "PROVISION_EXAMPLE"),
    "backup": CommandEntry("backup", "backup", "BACKUP_EXAMPLE"),
    "restore": CommandEntry("backup", "restore", "RESTORE_EXAMPLE"),
    "reread": CommandEntry("backup", "reread", "REREAD_EXAMPLE"),
    "config": CommandEntry("config"),
    "context": CommandEntry("contexts"),
    "doctor": CommandEntry("doctor", "doctor", "EXAMPLE"),
}
"""All commands and groups, in the order of `--help`."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001  # as typer calls it
    if wanted:
        from importlib.metadata import version

        write_text(f"sandherd {version('sandherd')}")
        raise typer.Exit


def _non_empty_path(text: str) -> Path:
    """A path. An empty text, as from an empty shell variable, is refused: as a path it is the current directory."""
    if not text:
        raise typer.BadParameter("it must not be empty: give a path, or leave the option out")
    return Path(text)


def store_location(
    ctx: typer.Context,
    *,
    nats_url: Annotated[str | None, typer.Option("--nats-url", metavar="URL", help="Address of the broker.")] = None,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", metavar="FILE", parser=_non_empty_path, help="A NATS .creds file.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="DIR",
            parser=_non_empty_path,
            help="The local stack's directory [default: SANDHERD_HOME, else sandherd in XDG_DATA_HOME or "
            "~/.local/share].",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            parser=_non_empty_path,
            help="YAML settings file [default: SANDHERD_CONFIG, else the stack's].",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="Context to use; see `sandherd context` [default: SANDHERD_CONTEXT].",
            autocompletion=context_names,
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Run herds of coding agents in sandboxes, and watch, record and control everything they do."""
    ctx.obj = HerdLocation(nats_url, credentials, home, config_file, context)


def build(names: Iterable[str] = COMMANDS, *, complete: bool = True) -> typer.Typer:
    """The command `sandherd` with these subcommands; the default is all, which imports the modules of all commands.

    With `complete` it can complete its arguments in a shell, and has the options that install the completion.
    """
    app = typer.Typer(
        help="Run herds of coding agents in sandboxes, and watch, record and control everything they do.",
        epilog=example("sandherd up", 'sandherd run "Compute C(50, 25)" -- python3 agent.py'),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=complete,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(store_location)
    for name in names:
        COMMANDS[name].register(app, name)
    return app


def build_for(arguments: Sequence[str]) -> typer.Typer:
    """The command `sandherd` with the one subcommand that the arguments name; with all if it is unknown.

    The subcommand is known if it is the first argument, or the first after options and their values.
    """
    command_names = named_command(arguments)
    return build(command_names[:1], complete=False) if command_names else build()


def named_command(arguments: Sequence[str]) -> list[str]:
    """The words of the command that these arguments call: one, or two if the first is a group. Empty if unknown."""
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        del rest[: 1 if "=" in rest[0] else 2]
    if not rest or rest[0] not in COMMANDS:
        return []
    is_group = COMMANDS[rest[0]].epilog is None
    return [argument for argument in rest[: 2 if is_group else 1] if not argument.startswith("-")]
