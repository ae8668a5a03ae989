"""`sandherd image`: builds sandbox images that contain the worker."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sandherd.cli.options import Format, Output, example, group

app = group("Sandbox images: add the worker to an image.", "sandherd image build --base debian:12 --tag agents:1")
HEADER = ("IMAGE", "PYTHON", "LAYER", "WHOLE", "PUSHED")
_MB = 1_000_000
WithSdks = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="KIND", help="Also add the SDK of this kind of agent: claude, openhands, acp; repeatable."
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="KIND",
        help="Form of the worker in the image: source (and bytecode), or binary (bytecode alone, a smaller layer).",
    ),
]


@app.callback()
def image() -> None:
    """Sandbox images: add the worker to an image."""


@app.command(
    "build",
    epilog=example(
        "sandherd image build --base debian:12 --tag agents:1 --with-python",
        "sandherd image build --base team/tools:7 --tag registry.example/agents:7 --push",
        "sandherd image build --base python:3.12-slim --tag agents:2 --with claude --with openhands",
    ),
)
def build_image(
    base: Annotated[str, typer.Option("--base", metavar="IMAGE", help="Base image, Debian-based or Alpine-based.")],
    tag: Annotated[str, typer.Option("--tag", "-t", metavar="NAME", help="Name of the new image.")],
    *,
    push: Annotated[bool, typer.Option("--push", help="Push the image to its registry.")] = False,
    platform: Annotated[
        str | None, typer.Option("--platform", metavar="OS/MACHINE", help="Build for another platform: linux/arm64.")
    ] = None,
    with_python: Annotated[
        bool,
        typer.Option(
            "--with-python", help="Download a Python if the base image has no Python that the worker can use."
        ),
    ] = False,
    harnesses: WithSdks = None,
    target: Target = "source",
    output: Output = Format.TABLE,
) -> int:
    """Add the worker to an image, as one small layer, so that sandboxes start without copying it.

    The new image has the user, the variables and the command of the base image. The `docker` command builds it.
    """
    from sandherd.admin.images.build import ImageBuildRequest, build
    from sandherd.cli.render.console import print_list
    from sandherd.cli.status_line import StatusLine
    from sandherd.cli.stderr import print_error

    request = ImageBuildRequest(
        base=base,
        tag=tag,
        platform=platform,
        with_python=with_python,
        push=push,
        harnesses=tuple(harnesses or ()),
        target=target,
    )
    with StatusLine(f"inspecting {base}") as activity:
        built = build(request, on_step=activity.step)
    sizes = (f"{built.layer_bytes / _MB:.1f} MB", f"{built.size_bytes / _MB:.1f} MB")
    if not built.git:
        print_error(f"{built.image} has no git: tasks with a repository fail in it; install git in {built.base}")
    row = (built.image, built.python, *sizes, "yes" if built.pushed else "no")
    print_list(output, asdict(built), HEADER, [row])
    return 0


@app.command("context", epilog=example("sandherd image context build/agents"))
def write_context(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    *,
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="VERSION", help="3.11, 3.12 or 3.13 [default: that of this program]."),
    ] = None,
    libc: Annotated[
        str | None,
        typer.Option("--libc", metavar="NAME", help="gnu (Debian) or musl (Alpine) [default: that of this machine]."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="x86_64 or aarch64 [default: that of this machine].")
    ] = None,
    harnesses: WithSdks = None,
    target: Target = "source",
    output: Output = Format.TABLE,
) -> int:
    """Write the build context of an image with the worker, for builders other than `docker`. Nothing is built.

    Pass BASE and WORKER as build arguments.
    """
    from sandherd.admin.images.build_context import write_new
    from sandherd.cli.render.console import print_list

    kind = write_new(folder, minor=python, libc=libc, machine=machine, harnesses=tuple(harnesses or ()), target=target)
    row = (str(folder), kind.minor, kind.libc, kind.machine)
    print_list(output, dict(zip(("folder", "python", "libc", "machine"), row, strict=True)), _CONTEXT_HEADER, [row])
    return 0


_CONTEXT_HEADER = ("FOLDER", "PYTHON", "LIBC", "MACHINE")
