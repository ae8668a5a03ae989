"""Adds the worker to an image: inspects the base, writes the build context, builds it, and reports the result."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sandherd.admin.images import agent_sdks
from sandherd.admin.images.base import MINORS, BaseImage, inspect_base
from sandherd.admin.images.build_context import TARGETS, check_choice, write
from sandherd.admin.images.docker import Docker
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.specs import Image
from sandherd.progress_steps import OnStep, ignore_step
from sandherd.worker_bundle import PROJECT


@dataclass(frozen=True, kw_only=True)
class ImageBuildRequest:
    """The image to build."""

    base: str
    tag: str
    platform: str | None = None
    with_python: bool = False
    """Whether to download a Python if the base has none that the worker supports."""
    push: bool = False
    harnesses: tuple[str, ...] = ()
    """The kinds of agent whose SDK the image gets."""
    target: str = TARGETS[0]
    """The form of the worker in the image, one of `TARGETS`."""

    @property
    def oldest_python(self) -> str:
        """The oldest Python version that supports all `harnesses`."""
        return agent_sdks.oldest_python(self.harnesses)


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """The built image. Sizes are in bytes."""

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
    harnesses: tuple[str, ...]
    target: str
    git: bool
    """Whether the image has git, which tasks with a repository need."""


def build(
    request: ImageBuildRequest, environ: Mapping[str, str] = os.environ, on_step: OnStep = ignore_step
) -> BuiltImage:
    """Build the image; docker shows its progress on standard error. Raises `HerdError`."""
    for field, name in (("base", request.base), ("tag", request.tag)):
        _check_image_name(field, name)
    agent_sdks.checked_kinds(request.harnesses)
    check_choice("target", request.target, TARGETS)
    docker = Docker.find(environ)
    base = inspect_base(docker, request.base, request.platform)
    has_python = base.has_python(request.oldest_python)
    if not has_python and not request.with_python:
        raise _no_python(request)
    with tempfile.TemporaryDirectory(prefix="sandherd-image-") as folder:
        on_step("downloading what the worker needs")
        platform = base.python_platform(request.oldest_python)
        write(
            Path(folder),
            platform,
            download=not has_python,
            harnesses=request.harnesses,
            target=request.target,
            environ=environ,
        )
        on_step("")
        docker.run_visibly(
            *build_arguments(request, base, buildx=docker.buildx),
            problem=f"{request.tag} can't be built",
            folder=Path(folder),
        )
        if request.push:
            docker.run_visibly("push", request.tag, problem=f"{request.tag} can't be pushed", folder=Path(folder))
    on_step(f"inspecting {request.tag}")
    return _built_image(docker, request, base)


def build_arguments(request: ImageBuildRequest, base: BaseImage, *, buildx: bool) -> list[str]:
    """The arguments of docker. The build has a network only if it downloads a Python."""
    return [
        *(("buildx", "build", "--progress", "plain", "--load") if buildx else ("build",)),
        *("--build-arg", f"BASE={request.base}", "--build-arg", f"WORKER={version(PROJECT)}"),
        *(("--network", "none") if base.has_python(request.oldest_python) else ()),
        *(("--platform", request.platform) if request.platform else ()),
        *("--tag", request.tag, "."),
    ]


def _no_python(request: ImageBuildRequest) -> HerdError:
    supported = [minor for minor in MINORS if BaseImage((minor,), "", "").has_python(request.oldest_python)]
    needed_by = " and ".join(["the worker", *request.harnesses])
    return HerdError.of(
        Code.REFUSED,
        f"{request.base} has no Python that supports {needed_by} ({', '.join(supported)})",
        field="base",
        remedy="install one in it, or add --with-python, which downloads one while building",
    )


def _built_image(docker: Docker, request: ImageBuildRequest, base: BaseImage) -> BuiltImage:
    identity, size = docker.read_output(
        *_INSPECT_ARGUMENTS, request.tag, problem=f"{request.tag} can't be inspected"
    ).split()
    _, base_size = docker.read_output(
        *_INSPECT_ARGUMENTS, request.base, problem=f"{request.base} can't be inspected"
    ).split()
    return BuiltImage(
        image=request.tag,
        id=identity,
        base=request.base,
        python=base.python_platform(request.oldest_python).minor,
        python_brought=not base.has_python(request.oldest_python),
        libc=base.libc,
        machine=base.machine,
        worker=version(PROJECT),
        layer_bytes=int(size) - int(base_size),
        size_bytes=int(size),
        pushed=request.push,
        harnesses=request.harnesses,
        target=request.target,
        git=base.git,
    )


_INSPECT_ARGUMENTS = ("image", "inspect", "--format", "{{.Id}} {{.Size}}")


def _check_image_name(field: str, name: str) -> None:
    try:
        TypeAdapter(Image).validate_python(name)
    except ValidationError:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{field}: {name[:100]!r} is not an image name",
            field=field,
            remedy="write it as NAME:TAG, or with its registry as HOST/NAME:TAG",
        ) from None
