"""Sandboxes that are asked for by themselves: made at once, frozen, given more time, ended, or refused and told why."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sandherd.bus.service import Service
from sandherd.contracts.commands import (
    Command,
    ExtendSandbox,
    Limits,
    PauseSandbox,
    ResumeSandbox,
    TerminateSandbox,
)
from sandherd.contracts.names import new_name
from spawner.runtimes.opening import Options, open_runtime

Make = Callable[..., Service]
TICKS = ["/bin/sh", "-c", "while :; do echo x >>ticks; sleep 0.02; done"]


def ticks_of(person: Any, sandbox: str) -> int:
    path = person.home / "sandboxes" / sandbox / "work" / "ticks"
    return path.stat().st_size if path.exists() else 0


async def test_a_sandbox_without_a_task_lives_until_it_is_ended(spawner: Make, person: Any) -> None:
    """It is made at once, runs no agent, has its files, and is gone with all it had when it is ended."""
    async with spawner().running():
        name = await person.create(files={"given": "hello"})
        view = await person.sandbox_is(name, "running")
        assert (view.task, view.expires_at is not None) == (None, True)
        assert (person.home / "sandboxes" / name / "work" / "given").read_text() == "hello"
        await person.command(TerminateSandbox(sandbox=name, reason="done with it"), name)
        await person.sandbox_is(name, "terminated")
        await person.all_gone()
        await person.hears(name, "sandbox.terminated")
    kinds = [kind for kind in person.types(name) if kind.startswith("sandbox.")]
    assert kinds == [f"sandbox.{what}" for what in ("requested", "spawned", "running", "stopping", "terminated")]
    assert "agent.failed" not in person.types(name)
    assert person.said(name, "sandbox.terminated")["reason"] == "done with it"
    person.check_sequences()


async def test_the_same_command_twice_makes_one(spawner: Make, person: Any) -> None:
    """A name stands for one sandbox: asked for again it is the same, and with another wish it is refused."""
    async with spawner().running():
        name = await person.create(ttl_seconds=600)
        await person.create(name, ttl_seconds=600)
        await person.sandbox_is(name, "running")
        await person.create(name, ttl_seconds=601)
        await person.hears(name, "sandbox.refused")
        assert "another sandbox" in person.said(name, "sandbox.refused")["reason"]
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.all_gone()
    assert person.types(name).count("sandbox.requested") == 1


@pytest.mark.parametrize(
    ("name", "spec", "field", "told"),
    [
        ("sbx-a", {"runtime": "nowhere"}, "spec.runtime", "there is: process"),
        ("sbx-a", {"profile": "none-such"}, "spec.profile", "there is: small"),
        ("sbx-a", {"limits": Limits(memory_mb=4096)}, "spec.limits.memory_mb", "at most 1024"),
        ("sbx-a", {"ttl_seconds": 5000}, "spec.ttl_seconds", "at most 3600"),
        ("mine", {}, "sandbox", "begins with 'sbx-'"),
    ],
)
async def test_what_can_not_be_had_is_refused(
    spawner: Make, person: Any, name: str, spec: dict[str, Any], field: str, told: str
) -> None:
    """A sandbox that can't be made as asked is refused at once, with the field and with what is allowed."""
    caps = Limits(memory_mb=1024, cpu_seconds=604_800, open_files=65_536, processes=32_768)
    async with spawner(caps=caps, max_ttl=3600, profiles={"small": {}}).running():
        await person.create(name, **spec)
        await person.hears(name, "sandbox.refused")
        said = person.said(name, "sandbox.refused")
        assert (said["command"], said["field"]) == ("spawner.create_sandbox", field)
        assert told in said["reason"]
        assert await person.sandbox(name) is None


async def test_no_room_is_refused_and_not_waited_for(spawner: Make, person: Any) -> None:
    """A sandbox without a task has no queue: where the herd is full it is refused, and told what is full."""
    async with spawner(max_sandboxes=2, max_sandboxes_per_project=1).running():
        first = await person.create()
        await person.sandbox_is(first, "running")
        second = await person.create()
        await person.hears(second, "sandbox.refused")
        assert "1 of 1 sandboxes of project p1 live" in person.said(second, "sandbox.refused")["reason"]
        await person.command(TerminateSandbox(sandbox=first, reason=""), first)
        await person.all_gone()


async def test_a_paused_sandbox_stands_still_until_it_is_resumed(spawner: Make, person: Any) -> None:
    """Every process of it is frozen and goes on where it was; both are said once, however often they are asked for."""
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
        await person.hears(sandbox, "sandbox.terminated")
    assert person.types(sandbox).count("sandbox.paused") == 2
    assert person.types(sandbox).count("sandbox.resumed") == 1
    assert person.said(sandbox, "sandbox.paused")["reason"] == "look at it"
    person.check_sequences()


async def test_what_takes_effect_late_is_put_right(spawner: Make, person: Any) -> None:
    """A pause that a runtime does only after the resume, or the other way round, as one who led before had asked."""
    before = await open_runtime(Options(root=person.home / "sandboxes", aside=person.home / "kept"))
    async with spawner().running():
        sandbox = (await person.reaches(await person.submit(TICKS), "running")).sandbox
        await before.pause(sandbox)
        frozen = ticks_of(person, sandbox)
        await person.eventually(lambda: ticks_of(person, sandbox) > frozen)
        await person.command(PauseSandbox(sandbox=sandbox), sandbox)
        await person.sandbox_is(sandbox, "paused")
        await before.resume(sandbox)

        async def stands_still() -> bool:
            seen = await before.look(sandbox)
            return bool(seen and seen.frozen)

        await person.eventually(stands_still)
        await person.command(TerminateSandbox(sandbox=sandbox, reason=""), sandbox)
        await person.all_gone()
    await before.close()
    assert person.types(sandbox).count("sandbox.paused") == 1
    assert "sandbox.resumed" not in person.types(sandbox)


async def test_a_paused_sandbox_is_found_by_the_next_spawner(spawner: Make, person: Any) -> None:
    """What is frozen stays so without a spawner, and the next one lets it go on."""
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
    """A sandbox that was extended before its time was over, and that time: how soon this is done nobody knows."""
    for seconds in (2, 10, 60):
        name = await person.create(ttl_seconds=seconds)
        await person.command(ExtendSandbox(sandbox=name, seconds=300), name)
        await person.eventually(lambda name=name: {"sandbox.extended", "sandbox.refused"} & {*person.types(name)})
        if "sandbox.extended" in person.types(name):
            return name, seconds
    pytest.fail("no sandbox was extended in a minute")


async def test_its_time_runs_out_unless_it_is_extended(spawner: Make, person: Any) -> None:
    """A sandbox is ended when its time to live is over; until then it can be extended, but not beyond the longest."""
    async with spawner(max_ttl=600).running():
        name, seconds = await extended(person)
        short = await person.create(ttl_seconds=seconds)
        await person.sandbox_is(short, "terminated")
        await person.hears(short, "sandbox.terminated")
        assert person.said(short, "sandbox.terminated")["reason"] == "expired"
        view = await person.sandbox_is(name, "running")
        assert view.expires_at - view.requested_at >= timedelta(seconds=300)
        await person.command(ExtendSandbox(sandbox=name, seconds=3000), name)
        await person.hears(name, "sandbox.refused")
        said = person.said(name, "sandbox.refused")
        assert said["field"] == "seconds"
        assert "600 s in all" in said["reason"]
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.all_gone()


async def test_a_task_whose_sandbox_has_expired_has_failed(spawner: Make, person: Any) -> None:
    """Time to live is the sandbox's: what was done in it is over with it, for good."""
    async with spawner(max_attempts=3).running():
        view = await person.ended(await person.submit(["sleep", "600"], ttl_seconds=1))
        assert (view.state, view.error_type, view.attempt) == ("failed", "expired", 1)
        await person.all_gone()


@pytest.mark.parametrize("kind", [PauseSandbox, ResumeSandbox, ExtendSandbox, TerminateSandbox])
async def test_what_is_asked_of_no_sandbox_is_refused(spawner: Make, person: Any, kind: Callable[..., Command]) -> None:
    """Whoever waits hears that there is no such sandbox, or that it has ended."""
    more: dict[Any, dict[str, Any]] = {ExtendSandbox: {"seconds": 5}, TerminateSandbox: {"reason": ""}}
    async with spawner().running():
        name = new_name("sbx")
        await person.command(kind(sandbox=name, **more.get(kind, {})), name)
        await person.hears(name, "sandbox.refused")
        assert f"there is no sandbox {name}" in person.said(name, "sandbox.refused")["reason"]


async def test_an_ended_sandbox_is_neither_paused_nor_extended(spawner: Make, person: Any) -> None:
    """The refusal says in which state it is."""
    async with spawner().running():
        task = await person.submit(["true"])
        sandbox = (await person.ended(task)).sandbox
        await person.sandbox_is(sandbox, "terminated")
        for command in (PauseSandbox(sandbox=sandbox), ExtendSandbox(sandbox=sandbox, seconds=5)):
            await person.command(command, sandbox)
        await person.eventually(lambda: person.types(sandbox).count("sandbox.refused") == 2)
        assert "is terminated" in person.said(sandbox, "sandbox.refused")["reason"]
