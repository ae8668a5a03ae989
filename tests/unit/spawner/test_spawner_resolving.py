"""What a spec comes to: its number of cores, which may be given by nobody, and which not every runtime can hold."""

import pytest

from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import Limits, SandboxSpec
from sandherd.settings import Settings
from spawner.resolving import Menu, Refusal, Resolved, resolve
from spawner.runtimes.contract import Capabilities, Isolation

ABLE = Capabilities(Isolation.PROVIDER, memory="provider", processes="provider", cores="provider")
UNABLE = Capabilities(Isolation.PROVIDER, memory="none", processes="none")


def menu(**settings: object) -> Menu:
    """Of a herd with these settings: `here` holds cores, `there` does not."""
    return Menu.of(Settings.model_validate({"runtime": "process"} | settings), {"process": ABLE, "remote": UNABLE})


@pytest.mark.parametrize(
    ("usual", "cap", "asked", "given"),
    [
        (None, None, None, None),
        (None, None, 1.5, 1.5),
        (2, None, None, 2),
        (2, None, 1.5, 1.5),
        (None, 4, None, 4),
        (8, 4, None, 4),
        (2, 4, 4, 4),
    ],
)
def test_cores_are_those_asked_for_else_the_usual(
    usual: float | None, cap: float | None, asked: float | None, given: float | None
) -> None:
    """Never more than is allowed; where nobody names a number there is none."""
    herd = menu(sandbox_cores=usual, caps=Limits(memory_mb=4096, cores=cap))
    for spec in (SandboxSpec(limits=Limits(cores=asked)), *([SandboxSpec()] if asked is None else [])):
        found = resolve(spec, herd)
        assert isinstance(found, Resolved)
        assert found.limits.cores == given


def test_more_cores_than_are_allowed_are_refused() -> None:
    """By the name of the field."""
    found = resolve(SandboxSpec(limits=Limits(cores=8)), menu(caps=Limits(cores=4)))
    assert found == Refusal("cores: 8.0 asked for; at most 4.0 is allowed here", "spec.limits.cores")


def test_a_runtime_that_holds_to_no_cores_refuses_them() -> None:
    """Whether the spec names them or its profile; the herd's usual number is none that anybody has asked for."""
    herd = menu(sandbox_cores=2, profiles={"wide": Profile(runtime="remote", limits=Limits(cores=2))})
    asked = resolve(SandboxSpec(runtime="remote", limits=Limits(cores=1)), herd)
    assert isinstance(asked, Refusal)
    assert (asked.field, "holds a sandbox to no number of cores" in asked.reason) == ("spec.limits.cores", True)
    profiled = resolve(SandboxSpec(profile="wide"), herd)
    assert isinstance(profiled, Refusal)
    assert profiled.field == "spec.profile"
    assert isinstance(resolve(SandboxSpec(runtime="remote"), herd), Resolved)
