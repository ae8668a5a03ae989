"""Making a sandbox from the command line, and looking for what is left over."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sandherd.client.cli import printing
from sandherd.client.cli.durations import seconds
from sandherd.client.cli.options import Format
from sandherd.client.cli.spec import read_files, references, variables
from sandherd.client.cli.talking import Work
from sandherd.client.errors import HerdError, made
from sandherd.client.herd import Herd, new_sandbox
from sandherd.client.terminal_text import put
from sandherd.contracts.requests import Catalogue, Pruned
from sandherd.contracts.specs import Limits, SandboxSpec

SpecT = TypeVar("SpecT", bound=SandboxSpec)
ORPHANS = ("ORPHAN", "RUNTIME", "REMOVED")


def sandbox_spec(  # noqa: PLR0913  # one parameter per option
    *,
    runtime: str | None,
    image: str | None,
    profile: str | None,
    ttl: str | None,
    files: Sequence[Path],
    env: Sequence[str],
    secret: Sequence[str],
    named: Sequence[str],
    server: bool,
) -> SandboxSpec:
    """The sandbox that a command line means. Raises `HerdError` naming what is wrong with it."""
    secrets = variables(secret, os.environ)
    given: dict[str, Any] = {
        "runtime": runtime,
        "image": image,
        "profile": profile,
        "ttl_seconds": None if ttl is None else seconds(ttl, "--ttl"),
        "env": variables(env, os.environ) | secrets,
        "secret_env": frozenset(secrets),
        "secrets": references(named),
        "files": read_files(files),
        "agent_server": {} if server else None,
    }
    return made(SandboxSpec, **given)


async def with_limits(herd: Herd, spec: SpecT, asked: Mapping[str, float]) -> SpecT:
    """The spec with these limits, and else with those that it would have had."""
    if not asked:
        return spec
    try:
        usual = _usual(await herd.catalogue(), spec.profile)
    except HerdError:
        usual = Limits()
    return spec.model_copy(update={"limits": made(Limits, **usual.model_dump() | dict(asked))})


def _usual(here: Catalogue, profile: str | None) -> Limits:
    own = here.profiles[profile].limits if profile in here.profiles else None
    return own or here.defaults


def create(spec: SandboxSpec, output: Format, *, limits: Mapping[str, float], wait: bool, timeout: float) -> Work:
    """What makes a sandbox, and prints its name."""

    async def work(herd: Herd) -> int:
        name = new_sandbox()
        wanted = await with_limits(herd, spec, limits)
        view = await herd.create(wanted, sandbox=name, wait=wait, timeout=timeout)
        if output is Format.JSON:
            printing.document(view or {"sandbox": name})
        else:
            put(name)
        return 0

    return work


def prune(output: Format, *, now: bool) -> Work:
    """What compares the records with what is there."""

    async def work(herd: Herd) -> int:
        found = await herd.prune(now=now)
        if output is Format.JSON:
            printing.document(found)
        else:
            _print_pruned(found)
        return 0

    return work


def _print_pruned(found: Pruned) -> None:
    facts = {"there": found.present, "wanted": found.records, "orphans": len(found.orphans), "lost": len(found.lost)}
    printing.facts(facts)
    if found.orphans:
        put()
        rows = [[orphan.sandbox, orphan.runtime, "yes" if orphan.removed else "not yet"] for orphan in found.orphans]
        printing.table(ORPHANS, rows)
    for name in found.lost:
        put(f"{name} is lost: its attempt fails")
