"""`sandherd harness`: install and list agent SDKs on the machine of the spawner."""

from pathlib import Path
from typing import Annotated

import typer

from sandherd.cli.options import Format, Output, example, group

app = group("Agent SDKs: install, list.", "sandherd harness install claude")
HEADER = ("HARNESS", "STATE", "INTERPRETER")


@app.callback()
def harness() -> None:
    """Agent SDKs: install, list."""


@app.command("install", epilog=example("sandherd harness install claude", "sandherd harness install openhands acp"))
def install_harness(
    ctx: typer.Context,
    kinds: Annotated[list[str], typer.Argument(metavar="KIND…", help="claude, openhands or acp.")],
    *,
    again: Annotated[bool, typer.Option("--again", help="Also reinstall SDKs that are installed already.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """Install the SDK and other packages of a kind of agent, with uv, in the versions of the lock file.

    They are installed in `toolchains` in the home, or in SANDHERD_TOOLCHAINS. Every later sandbox uses them.
    """
    from sandherd.admin.toolchains import PYTHON_OF_KIND, install, is_installed, lock_of
    from sandherd.cli.render.console import print_list
    from sandherd.cli.status_line import StatusLine
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    for kind in (kind for kind in kinds if kind not in PYTHON_OF_KIND):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"there is nothing to install for {kind[:60]!r}; known kinds: {', '.join(PYTHON_OF_KIND)}",
            field="kind",
            remedy="name one of them",
        )
    directory = _checked_directory(ctx)
    rows = []
    for number, kind in enumerate(kinds, 1):
        lock = lock_of(kind)
        is_current = is_installed(kind, directory, lock) and not again
        python = directory / kind / "bin" / "python"
        if not is_current:
            with StatusLine(f"downloading and installing {kind} ({number} of {len(kinds)})"):
                python = install(kind, directory, lock)
        rows.append((kind, "was installed" if is_current else "installed", str(python)))
    print_list(output, _document(rows), HEADER, rows)
    return 0


@app.command("list", epilog=example("sandherd harness list", "sandherd harness list -o json"))
def list_harnesses(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """List the agent SDKs: whether each is installed and matches its lock file. The `command` harness needs none.

    An outdated SDK is still used; `harness install` updates it. If an SDK is `writable`, any user of this host may have
    changed it; `harness install` replaces it.
    """
    from sandherd.admin.toolchains import PYTHON_OF_KIND, state
    from sandherd.cli.render.console import print_list

    directory = _directory(ctx)
    rows = [(kind, state(kind, directory), str(directory / kind / "bin" / "python")) for kind in PYTHON_OF_KIND]
    print_list(output, _document(rows), HEADER, rows)
    return 0


def _directory(ctx: typer.Context) -> Path:
    from sandherd.cli.herd_session import command_context

    context = command_context(ctx)
    return context.toolchains or context.home / "toolchains"


def _checked_directory(ctx: typer.Context) -> Path:
    """The directory of the toolchains. Raises `UnsafeHomeError` if it is in a home that is not safe."""
    from sandherd.cli.herd_session import command_context
    from sandherd.safe_home import check_home

    home, directory = command_context(ctx).home, _directory(ctx)
    if directory.absolute().is_relative_to(home.absolute()) or directory.is_relative_to(home.resolve()):
        check_home(home)
    return directory


def _document(rows: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [dict(zip(("harness", "state", "interpreter"), row, strict=True)) for row in rows]
