"""Putting the worker onto an image: look at the base, write the folder, build it, and say what came of it."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sandherd.bundle import PROJECT
from sandherd.client.errors import HerdError
from sandherd.client.images.base import MINORS, Base, look
from sandherd.client.images.context import write
from sandherd.client.images.docker import Docker
from sandherd.contracts.errors import Code
from sandherd.contracts.specs import Image


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be built."""

    base: str
    tag: str
    platform: str | None = None
    with_python: bool = False
    """Whether a Python is fetched where the base has none that fits."""
    push: bool = False


@dataclass(frozen=True, kw_only=True)
class Built:
    """What was built. Sizes are in bytes."""

    image: str
    id: str
    base: str
    python: str
    python_brought: bool
    libc: str
    machine: str
    worker: str
    layer_bytes: int
    size_bytes: int
    pushed: bool


def build(order: Order, environ: Mapping[str, str] = os.environ) -> Built:
    """Build it, with the progress on standard error. Raises `HerdError`."""
    for what, name in (("base", order.base), ("tag", order.tag)):
        _checked(what, name)
    docker = Docker.find(environ)
    base = look(docker, order.base, order.platform)
    if not base.fits and not order.with_python:
        raise HerdError.of(
            Code.REFUSED,
            f"{order.base} has no Python that the worker runs on ({', '.join(MINORS)})",
            field="base",
            remedy="install python3 in it, or add --with-python, which fetches one while building",
        )
    with tempfile.TemporaryDirectory(prefix="sandherd-image-") as folder:
        write(Path(folder), base.kind, bring=not base.fits, environ=environ)
        docker.show(*words(order, base, buildx=docker.buildx), what=f"{order.tag} can't be built", folder=Path(folder))
        if order.push:
            docker.show("push", order.tag, what=f"{order.tag} can't be pushed", folder=Path(folder))
    return _told(docker, order, base)


def words(order: Order, base: Base, *, buildx: bool) -> list[str]:
    """What docker is told. While nothing has to be fetched there is no network."""
    return [
        *(("buildx", "build", "--progress", "plain", "--load") if buildx else ("build",)),
        *("--build-arg", f"BASE={order.base}", "--build-arg", f"WORKER={version(PROJECT)}"),
        *(("--network", "none") if base.fits else ()),
        *(("--platform", order.platform) if order.platform else ()),
        *("--tag", order.tag, "."),
    ]


def _told(docker: Docker, order: Order, base: Base) -> Built:
    identity, size = docker.ask(*_INSPECT, order.tag, what=f"{order.tag} can't be seen").split()
    _, before = docker.ask(*_INSPECT, order.base, what=f"{order.base} can't be seen").split()
    return Built(
        image=order.tag,
        id=identity,
        base=order.base,
        python=base.kind.minor,
        python_brought=not base.fits,
        libc=base.libc,
        machine=base.machine,
        worker=version(PROJECT),
        layer_bytes=int(size) - int(before),
        size_bytes=int(size),
        pushed=order.push,
    )


_INSPECT = ("image", "inspect", "--format", "{{.Id}} {{.Size}}")


def _checked(what: str, name: str) -> None:
    try:
        TypeAdapter(Image).validate_python(name)
    except ValidationError:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{what}: {name[:100]!r} is no name of an image",
            field=what,
            remedy="write it as NAME:TAG, or with its registry as HOST/NAME:TAG",
        ) from None
