"""`sandherd image`: images of sandboxes, with the worker in them."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sandherd.client.cli.options import Format, Output, example, group

app = group("Images of sandboxes: put the worker onto one.", "sandherd image build --base debian:12 --tag agents:1")
HEADER = ("IMAGE", "PYTHON", "LAYER", "WHOLE", "PUSHED")
_MB = 1_000_000


@app.callback()
def image() -> None:
    """Images of sandboxes: put the worker onto one."""


@app.command(
    "build",
    epilog=example(
        "sandherd image build --base debian:12 --tag agents:1 --with-python",
        "sandherd image build --base team/tools:7 --tag registry.example/agents:7 --push",
    ),
)
def build_image(
    base: Annotated[str, typer.Option("--base", metavar="IMAGE", help="Of Debian's kind, or Alpine's.")],
    tag: Annotated[str, typer.Option("--tag", "-t", metavar="NAME", help="What the new image is called.")],
    *,
    push: Annotated[bool, typer.Option("--push", help="Give it to its registry.")] = False,
    platform: Annotated[
        str | None, typer.Option("--platform", metavar="OS/MACHINE", help="For another machine: linux/arm64.")
    ] = None,
    with_python: Annotated[
        bool, typer.Option("--with-python", help="Fetch a Python where the base has none for the worker.")
    ] = False,
    output: Output = Format.TABLE,
) -> int:
    """Put the worker onto an image, as one small layer: sandboxes of it start without being brought anything.

    The image keeps what it had: its user, its variables, its command. Docker's own command builds it.
    """
    from sandherd.client.cli.printing import answer
    from sandherd.client.images.building import Order, build

    order = Order(base=base, tag=tag, platform=platform, with_python=with_python, push=push)
    built = build(order)
    sizes = (f"{built.layer_bytes / _MB:.1f} MB", f"{built.size_bytes / _MB:.1f} MB")
    row = (built.image, built.python, *sizes, "yes" if built.pushed else "no")
    answer(output, asdict(built), HEADER, [row])
    return 0


@app.command("context", epilog=example("sandherd image context build/agents"))
def write_context(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    *,
    python: Annotated[
        str | None, typer.Option("--python", metavar="VERSION", help="3.11, 3.12 or 3.13; else as runs here.")
    ] = None,
    libc: Annotated[
        str | None, typer.Option("--libc", metavar="NAME", help="gnu (Debian) or musl (Alpine); else as runs here.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="x86_64 or aarch64; else as runs here.")
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Write the folder that such an image is built in, for builders other than Docker's command; nothing is built.

    Give them BASE and WORKER as build arguments.
    """
    from sandherd.client.cli.printing import answer
    from sandherd.client.images.context import written

    kind = written(folder, minor=python, libc=libc, machine=machine)
    row = (str(folder), kind.minor, kind.libc, kind.machine)
    answer(output, dict(zip(("folder", "python", "libc", "machine"), row, strict=True)), _CONTEXT, [row])
    return 0


_CONTEXT = ("FOLDER", "PYTHON", "LIBC", "MACHINE")
