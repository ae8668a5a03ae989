"""Sandboxes without a task: they are created at once, paused, extended, ended, or refused with the reason."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from sandherd.contracts.commands import (
    Command,
    ExtendSandbox,
    PauseSandbox,
    ResumeSandbox,
    SandboxLimits,
    TerminateSandbox,
)
from sandherd.contracts.names import new_name
from sandherd.service.service import Service
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime

Make = Callable[..., Service]
TICKS = ["/bin/sh", "-c", "while :; do echo x >>ticks; sleep 0.02; done"]


def ticks_of(person: Any, sandbox: str) -> int:
    path = person.home / "sandboxes" / sandbox / "work" / "ticks"
    return path.stat().st_size if path.exists() else 0


async def test_sandbox_without_a_task_runs_until_it_is_ended(spawner: Make, person: Any) -> None:
    """The sandbox starts at once without an agent, has its files, and is removed with them when it is ended."""
    async with spawner().running():
        name = await person.create(files={"given": "hello"})
        view = await person.sandbox_is(name, "running")
        assert (view.task, view.expires_at is not None) == (None, True)
        assert (person.home / "sandboxes" / name / "work" / "given").read_text() == "hello"
        await person.command(TerminateSandbox(sandbox=name, reason="done with it"), name)
        await person.sandbox_is(name, "terminated")
        await person.all_gone()
        await person.receives(name, "sandbox.terminated")
    kinds = [kind for kind in person.types(name) if kind.startswith("sandbox.")]
    assert kinds == [f"sandbox.{what}" for what in ("requested", "spawned", "running", "stopping", "terminated")]
    assert "agent.failed" not in person.types(name)
    assert person.event_data(name, "sandbox.terminated")["reason"] == "done with it"
    person.check_sequences()


async def test_repeated_creation_is_one_sandbox(spawner: Make, person: Any) -> None:
    """A name stands for one sandbox: the same request again is idempotent, and a different one is refused."""
    async with spawner().running():
        name = await person.create(ttl_seconds=600)
        await person.create(name, ttl_seconds=600)
        await person.sandbox_is(name, "running")
        await person.create(name, ttl_seconds=601)
        await person.receives(name, "sandbox.refused")
        assert "another sandbox" in person.event_data(name, "sandbox.refused")["reason"]
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.all_gone()
    assert person.types(name).count("sandbox.requested") == 1


UNAVAILABLE: Final[tuple[tuple[str, dict[str, Any], str, str], ...]] = (
    ("sbx-a", {"runtime": "nowhere"}, "spec.runtime", "there is: process"),
    ("sbx-b", {"profile": "none-such"}, "spec.profile", "there is: small"),
    ("sbx-c", {"limits": SandboxLimits(memory_mb=4096)}, "spec.limits.memory_mb", "at most 1024"),
    ("sbx-d", {"ttl_seconds": 5000}, "spec.ttl_seconds", "at most 1h"),
    ("mine", {}, "sandbox", "begins with 'sbx-'"),
)
"""The name and the specification of a sandbox, the refused field, and a part of the reason."""


async def test_unavailable_sandbox_is_refused(spawner: Make, person: Any) -> None:
    """A sandbox that can't be created as requested is refused at once, with the field and what is allowed."""
    caps = SandboxLimits(memory_mb=1024, cpu_seconds=604_800, open_files=65_536, processes=32_768)
    async with spawner(caps=caps, max_ttl=3600, profiles={"small": {}}).running():
        for name, spec, field, reason in UNAVAILABLE:
            await person.create(name, **spec)
            await person.receives(name, "sandbox.refused")
            refused = person.event_data(name, "sandbox.refused")
            assert (refused["command"], refused["field"]) == ("spawner.create_sandbox", field)
            assert reason in refused["reason"]
            assert await person.sandbox(name) is None


async def test_missing_capacity_is_refused_without_a_queue(spawner: Make, person: Any) -> None:
    """A sandbox without a task is refused if the herd is full, and the error states what is full."""
    async with spawner(max_sandboxes=2, max_sandboxes_per_project=1).running():
        first = await person.create()
        await person.sandbox_is(first, "running")
        second = await person.create()
        await person.receives(second, "sandbox.refused")
        assert "1 of 1 sandboxes of project p1 live" in person.event_data(second, "sandbox.refused")["reason"]
        await person.command(TerminateSandbox(sandbox=first, reason=""), first)
        await person.all_gone()


async def test_paused_sandbox_is_frozen_until_resumed(spawner: Make, person: Any) -> None:
    """Every process is frozen and then continues; pause and resume are each published once, however often requested."""
    async with spawner().running():
        task = await person.submit(TICKS)
        sandbox = (await person.reaches(task, "running")).sandbox
        await person.eventually(lambda: ticks_of(person, sandbox))
        for _ in range(2):
            await person.command(PauseSandbox(sandbox=sandbox, reason="look at it"), sandbox)
        await person.sandbox_is(sandbox, "paused")
        frozen = ticks_of(person, sandbox)
        other = await person.submit(["/bin/sh", "-c", "sleep 0.2"])
        await person.ended(other)
        assert ticks_of(person, sandbox) == frozen
        await person.command(ResumeSandbox(sandbox=sandbox), sandbox)
        await person.sandbox_is(sandbox, "running")
        await person.eventually(lambda: ticks_of(person, sandbox) > frozen)
        await person.command(PauseSandbox(sandbox=sandbox), sandbox)
        await person.sandbox_is(sandbox, "paused")
        await person.command(TerminateSandbox(sandbox=sandbox, reason="That is enough."), sandbox)
        assert (await person.ended(task)).error_type == "terminated"
        await person.all_gone()
        await person.receives(sandbox, "sandbox.terminated")
    assert person.types(sandbox).count("sandbox.paused") == 2
    assert person.types(sandbox).count("sandbox.resumed") == 1
    assert person.event_data(sandbox, "sandbox.paused")["reason"] == "look at it"
    person.check_sequences()


async def test_late_pause_or_resume_is_corrected(spawner: Make, person: Any) -> None:
    """A pause that a runtime performs after the resume, requested by a former leader, is undone, and the reverse."""
    before = await open_runtime(ProcessRuntimeOptions(root=person.home / "sandboxes", quarantine=person.home / "kept"))
    async with spawner().running():
        sandbox = (await person.reaches(await person.submit(TICKS), "running")).sandbox
        await before.pause(sandbox)
        frozen = ticks_of(person, sandbox)
        await person.eventually(lambda: ticks_of(person, sandbox) > frozen)
        await person.command(PauseSandbox(sandbox=sandbox), sandbox)
        await person.sandbox_is(sandbox, "paused")
        await before.resume(sandbox)

        async def stands_still() -> bool:
            seen = await before.observe(sandbox)
            return bool(seen and seen.frozen)

        await person.eventually(stands_still)
        await person.command(TerminateSandbox(sandbox=sandbox, reason=""), sandbox)
        await person.all_gone()
    await before.close()
    assert person.types(sandbox).count("sandbox.paused") == 1
    assert "sandbox.resumed" not in person.types(sandbox)


async def test_paused_sandbox_is_adopted_by_the_next_spawner(spawner: Make, person: Any) -> None:
    """A frozen sandbox stays frozen without a spawner, and the next one can resume it."""
    async with spawner().running():
        name = await person.create()
        await person.sandbox_is(name, "running")
        await person.command(PauseSandbox(sandbox=name), name)
        await person.sandbox_is(name, "paused")
    async with spawner().running():
        await person.command(ResumeSandbox(sandbox=name), name)
        await person.sandbox_is(name, "running")
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.all_gone()


async def extended(person: Any) -> tuple[str, int]:
    """Extend a sandbox before it expires, repeatedly until that succeeds; returns it and its first expiry."""
    for seconds in (2, 10, 60):
        name = await person.create(ttl_seconds=seconds)
        await person.command(ExtendSandbox(sandbox=name, seconds=300), name)
        await person.eventually(lambda name=name: {"sandbox.extended", "sandbox.refused"} & {*person.types(name)})
        if "sandbox.extended" in person.types(name):
            return name, seconds
    pytest.fail("no sandbox was extended in a minute")


async def test_sandbox_expires_unless_it_is_extended(spawner: Make, person: Any) -> None:
    """A sandbox ends after its time to live; until then it can be extended, but not beyond the maximum."""
    async with spawner(max_ttl=600).running():
        name, seconds = await extended(person)
        short = await person.create(ttl_seconds=seconds)
        await person.sandbox_is(short, "terminated")
        await person.receives(short, "sandbox.terminated")
        assert person.event_data(short, "sandbox.terminated")["reason"] == "expired"
        view = await person.sandbox_is(name, "running")
        assert view.expires_at - view.requested_at >= timedelta(seconds=300)
        await person.command(ExtendSandbox(sandbox=name, seconds=3000), name)
        await person.receives(name, "sandbox.refused")
        refusal_data = person.event_data(name, "sandbox.refused")
        assert refusal_data["field"] == "seconds"
        assert "10m in total" in refusal_data["reason"]
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.all_gone()


async def test_task_in_an_expired_sandbox_fails(spawner: Make, person: Any) -> None:
    """A task fails permanently if its sandbox exceeds its time to live."""
    async with spawner(max_attempts=3).running():
        view = await person.ended(await person.submit(["sleep", "600"], ttl_seconds=1))
        assert (view.state, view.error_type, view.attempt) == ("failed", "expired", 1)
        await person.all_gone()


async def test_command_for_a_missing_sandbox_is_refused(spawner: Make, person: Any) -> None:
    """The refusal states that there is no such sandbox."""
    more: dict[Any, dict[str, Any]] = {ExtendSandbox: {"seconds": 5}, TerminateSandbox: {"reason": ""}}
    kinds: tuple[Callable[..., Command], ...] = (PauseSandbox, ResumeSandbox, ExtendSandbox, TerminateSandbox)
    async with spawner().running():
        for kind in kinds:
            name = new_name("sbx")
            await person.command(kind(sandbox=name, **more.get(kind, {})), name)
            await person.receives(name, "sandbox.refused")
            assert f"there is no sandbox {name}" in person.event_data(name, "sandbox.refused")["reason"]


async def test_ended_sandbox_is_neither_paused_nor_extended(spawner: Make, person: Any) -> None:
    """The refusal to pause or extend an ended sandbox has its state."""
    async with spawner().running():
        task = await person.submit(["true"])
        sandbox = (await person.ended(task)).sandbox
        await person.sandbox_is(sandbox, "terminated")
        for command in (PauseSandbox(sandbox=sandbox), ExtendSandbox(sandbox=sandbox, seconds=5)):
            await person.command(command, sandbox)
        await person.eventually(lambda: person.types(sandbox).count("sandbox.refused") == 2)
        assert "is terminated" in person.event_data(sandbox, "sandbox.refused")["reason"]
