"""`sandherd harness`: the SDKs of agents, installed where the spawner runs."""

from pathlib import Path
from typing import Annotated

import typer

from sandherd.client.cli.options import Format, Output, example, group

app = group("The SDKs of agents: install, list.", "sandherd harness install claude")
HEADER = ("HARNESS", "STATE", "INTERPRETER")


@app.callback()
def harness() -> None:
    """The SDKs of agents: install, list."""


@app.command("install", epilog=example("sandherd harness install claude", "sandherd harness install openhands acp"))
def install_harness(
    ctx: typer.Context,
    kinds: Annotated[list[str], typer.Argument(metavar="KIND…", help="claude, openhands or acp.")],
    *,
    again: Annotated[bool, typer.Option("--again", help="Also what is installed already.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """Install what an agent of this kind needs, with uv, exactly as the lock has it.

    It is put into `toolchains` in the home, or where SANDHERD_TOOLCHAINS says, and used by every sandbox from then on.
    """
    from sandherd.client.cli.printing import answer
    from sandherd.client.errors import HerdError
    from sandherd.client.toolchains import KINDS, install, is_installed, lock_of
    from sandherd.contracts.errors import Code

    for kind in (kind for kind in kinds if kind not in KINDS):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"nothing is installed for {kind[:60]!r}; there is: {', '.join(KINDS)}",
            field="kind",
            remedy="name one of them",
        )
    directory = _directory(ctx)
    rows = []
    for kind in kinds:
        lock = lock_of(kind)
        there = is_installed(kind, directory, lock) and not again
        python = directory / kind / "bin" / "python" if there else install(kind, directory, lock)
        rows.append((kind, "was installed" if there else "installed", str(python)))
    answer(output, _document(rows), HEADER, rows)
    return 0


@app.command("list", epilog=example("sandherd harness list", "sandherd harness list -o json"))
def list_harnesses(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """Which kinds of agent have their SDK here, and as the lock has it. A command needs none.

    What is outdated is used as it is; `harness install` brings it up to date.
    """
    from sandherd.client.cli.printing import answer
    from sandherd.client.toolchains import KINDS, state

    directory = _directory(ctx)
    rows = [(kind, state(kind, directory), str(directory / kind / "bin" / "python")) for kind in KINDS]
    answer(output, _document(rows), HEADER, rows)
    return 0


def _directory(ctx: typer.Context) -> Path:
    from sandherd.client.cli.talking import where

    here = where(ctx)
    return here.toolchains or here.home / "toolchains"


def _document(rows: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [dict(zip(("harness", "state", "interpreter"), row, strict=True)) for row in rows]
