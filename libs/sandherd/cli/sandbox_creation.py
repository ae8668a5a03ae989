"""Creates a sandbox from the command line, and prunes orphans."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sandherd.cli.herd_session import Work
from sandherd.cli.options import Format
from sandherd.cli.parse.task_spec import read_files, references, secret_variables, variables
from sandherd.cli.parse.units import seconds
from sandherd.cli.render import console
from sandherd.client.errors import HerdError, InvalidFieldError, validated
from sandherd.client.herd import Herd, new_sandbox
from sandherd.client.terminal_text import write_text
from sandherd.contracts.specs import SandboxLimits, SandboxSpec

if TYPE_CHECKING:
    from sandherd.contracts.requests import Catalogue, PruneResult

SpecT = TypeVar("SpecT", bound=SandboxSpec)
ORPHAN_HEADER = ("ORPHAN", "RUNTIME", "REMOVED")


def sandbox_spec(  # noqa: PLR0913  # one parameter per option
    *,
    runtime: str | None,
    image: str | None,
    profile: str | None,
    ttl: str | None,
    files: Sequence[Path],
    env: Sequence[str],
    secret_env: Sequence[str],
    secret_references: Sequence[str],
    agent_server: bool,
) -> SandboxSpec:
    """The sandbox spec from command-line options. Raises `HerdError` naming the invalid field."""
    secrets = secret_variables(secret_env, os.environ)
    fields: dict[str, Any] = {
        "runtime": runtime,
        "image": image,
        "profile": profile,
        "ttl_seconds": None if ttl is None else seconds(ttl, "--ttl"),
        "env": variables(env, os.environ) | secrets,
        "secret_env": frozenset(secrets),
        "secrets": references(secret_references),
        "files": read_files(files),
        "agent_server": {} if agent_server else None,
    }
    return validated(SandboxSpec, **fields)


async def with_limits(herd: Herd, spec: SpecT, limits: Mapping[str, float]) -> SpecT:
    """The spec with these limits. Limits that are not given have the defaults of the profile or the herd."""
    if not limits:
        return spec
    try:
        defaults = _default_limits(await herd.catalogue(), spec.profile)
    except HerdError:
        defaults = SandboxLimits()
    return spec.model_copy(update={"limits": validated(SandboxLimits, **defaults.model_dump() | dict(limits))})


def _default_limits(catalogue: "Catalogue", profile: str | None) -> SandboxLimits:
    limits = catalogue.profiles[profile].limits if profile in catalogue.profiles else None
    return limits or catalogue.defaults


def create(spec: SandboxSpec, output: Format, *, limits: Mapping[str, float], wait: bool, timeout: float) -> Work:
    """A function that creates a sandbox and prints its name."""

    async def work(herd: Herd) -> int:
        name = new_sandbox()
        limited_spec = await with_limits(herd, spec, limits)
        view = await herd.create(limited_spec, sandbox=name, wait=wait, timeout=timeout)
        if output.is_json:
            console.print_document(output, view or {"sandbox": name})
        else:
            write_text(name)
        return 0

    return work


def refuse_lifetime(error: InvalidFieldError, ttl: str) -> Work:
    """A function that refuses a lifetime above the contract's maximum. The error names the herd's lower maximum."""

    async def work(herd: Herd) -> int:
        from sandherd.client.tasks.preflight import lifetime_error  # only needed for an error

        try:
            maximum = (await herd.catalogue()).max_ttl_seconds
        except HerdError:
            raise error from None
        raise lifetime_error(seconds(ttl, "--ttl"), maximum, "spec.ttl_seconds", "--ttl")

    return work


def prune(output: Format, *, now: bool) -> Work:
    """A function that compares records with the sandboxes of runtimes, and shows orphans and lost sandboxes."""

    async def work(herd: Herd) -> int:
        result = await herd.prune(now=now)
        if output.is_json:
            console.print_document(output, result)
        else:
            _print_pruned(result)
        return 0

    return work


def _print_pruned(prune_result: "PruneResult") -> None:
    facts = {"present": prune_result.present, "records": prune_result.records}
    facts |= {"orphans": len(prune_result.orphans), "lost": len(prune_result.lost)}
    console.print_facts(facts)
    if prune_result.orphans:
        write_text()
        rows = [
            [orphan.sandbox, orphan.runtime, "yes" if orphan.removed else "not yet"] for orphan in prune_result.orphans
        ]
        console.print_table(ORPHAN_HEADER, rows)
    for name in prune_result.lost:
        write_text(f"{name} is lost: its attempt fails")
