"""The number of cores that a spec resolves to, and runtimes without core limits."""

import pytest

from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.settings import Settings
from spawner.runtimes.contract import Capabilities, Isolation
from spawner.spec_resolution import Refusal, ResolvedSpec, SpawnPolicy, resolve

ABLE = Capabilities(Isolation.PROVIDER, memory="provider", processes="provider", cores="provider")
UNABLE = Capabilities(Isolation.PROVIDER, memory="none", processes="none")


def menu(**settings: object) -> SpawnPolicy:
    """The policy of a herd with these settings: runtime `here` limits cores, `there` does not."""
    return SpawnPolicy.of(
        Settings.model_validate({"runtime": "process"} | settings), {"process": ABLE, "remote": UNABLE}
    )


@pytest.mark.parametrize(
    ("usual", "cap", "requested", "given"),
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
def test_cores_are_requested_else_default(
    usual: float | None, cap: float | None, requested: float | None, given: float | None
) -> None:
    """No more cores than the cap are given; without a request and a default there is no limit."""
    herd = menu(sandbox_cores=usual, caps=SandboxLimits(memory_mb=4096, cores=cap))
    for spec in (SandboxSpec(limits=SandboxLimits(cores=requested)), *([SandboxSpec()] if requested is None else [])):
        found = resolve(spec, herd)
        assert isinstance(found, ResolvedSpec)
        assert found.limits.cores == given


def test_cores_over_the_cap_are_refused() -> None:
    """The refusal names the field."""
    found = resolve(SandboxSpec(limits=SandboxLimits(cores=8)), menu(caps=SandboxLimits(cores=4)))
    assert found == Refusal("cores: 8.0 requested; at most 4.0 is allowed here", "spec.limits.cores")


def test_runtime_without_core_limits_refuses_them() -> None:
    """The spec's or its profile's cores are refused; the herd's default is ignored."""
    herd = menu(sandbox_cores=2, profiles={"wide": Profile(runtime="remote", limits=SandboxLimits(cores=2))})
    requested = resolve(SandboxSpec(runtime="remote", limits=SandboxLimits(cores=1)), herd)
    assert isinstance(requested, Refusal)
    assert (requested.field, "does not enforce a limit on cores" in requested.reason) == ("spec.limits.cores", True)
    profiled = resolve(SandboxSpec(profile="wide"), herd)
    assert isinstance(profiled, Refusal)
    assert profiled.field == "spec.profile"
    assert isinstance(resolve(SandboxSpec(runtime="remote"), herd), ResolvedSpec)
