"""Resolved tasks and refusals: each refusal names the field, and states what is allowed."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.commands import CommandHarness, RetryPolicy, SubmitTask, TaskSpec
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.failures import ErrorType, is_transient
from sandherd.contracts.requests import Mount, Profile, ProjectDefaults
from sandherd.contracts.specs import SandboxLimits
from sandherd.settings import Settings
from spawner.runtimes.contract import Capabilities, Isolation
from spawner.sandboxes.sandbox_transitions import requested
from spawner.spec_resolution import Refusal, SpawnPolicy
from spawner.tasks import task_transitions as of_task
from spawner.tasks.dependencies import PendingDependencies, cycle_refusal, missing_refusal
from spawner.tasks.resolved_task import ResolvedTask, resolve_task
from tests.unit.spawner.test_spawner_retry import TRACE, command_envelope

NOW = datetime(2026, 11, 20, tzinfo=UTC)
SMALL = SandboxLimits(memory_mb=512)
MENU = SpawnPolicy.of(
    Settings(
        profiles={
            "small": Profile(limits=SMALL, env={"LEVEL": "debug", "LANG": "C"}),
            "odd": Profile(runtime="moon"),
            "filled": Profile(mounts=(Mount(source="data", target="/data"),)),
            "bound": Profile(mounts=(Mount(source="/srv/data", target="/data"),)),
        },
        caps=SandboxLimits(memory_mb=4096, cpu_seconds=7200, open_files=2048, processes=1024),
        max_attempts=4,
        attempt_timeout=900,
        max_ttl=1000,
        sandbox_mounts=frozenset({"data", "/srv"}),
    ),
    {
        "process": Capabilities(Isolation.NONE, "none", "none"),
        "other": Capabilities(Isolation.PROVIDER, "provider", "provider", images=True, mounts=True),
        "cluster": Capabilities(
            Isolation.PROVIDER, "provider", "provider", images=True, mounts=True, volumes_only=True
        ),
    },
)


def submit(task: str = "task-1", **spec: Any) -> SubmitTask:
    return SubmitTask(task=task, spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), **spec))


def given(submitted: SubmitTask) -> ResolvedTask:
    found = resolve_task("p1", submitted, MENU)
    assert isinstance(found, ResolvedTask)
    return found


def test_budget_is_that_of_the_spec_else_of_the_profile() -> None:
    """The budget is published when a sandbox is requested. No worker gets it: an older one would refuse the spec."""
    own, usual = BudgetLimits(turns=3), BudgetLimits(turns=9)
    menu = replace(MENU, profiles={"small": Profile(budget=usual)})
    found = [
        resolve_task("p1", submit(profile=profile, budget=budget), menu)
        for profile, budget in (("small", None), ("small", own), (None, own), (None, None))
    ]
    assert [one.budget for one in found if isinstance(one, ResolvedTask)] == [usual, own, own, None]
    assert "budget" not in submit(budget=own).spec.to_json()
    assert not is_transient(ErrorType.BUDGET_EXCEEDED)


def test_omitted_fields_default_to_profile_then_settings() -> None:
    """An omitted field is taken from the profile, else from the settings. Specified fields are unchanged."""
    plain, small = given(submit()), given(submit(profile="small", env={"LEVEL": "info"}))
    assert (plain.runtime, plain.limits.memory_mb, plain.max_attempts, plain.attempt_seconds) == (
        "process",
        2048,
        4,
        900,
    )
    assert (small.limits, small.env) == (SMALL, {"LEVEL": "info", "LANG": "C"})
    own = given(
        submit(profile="small", runtime="other", limits=SandboxLimits(memory_mb=64), attempt_seconds=5,
               retry=RetryPolicy(max_attempts=1))
    )  # fmt: skip
    assert (own.runtime, own.limits.memory_mb, own.max_attempts, own.attempt_seconds) == ("other", 64, 1, 5)


@pytest.mark.parametrize(
    ("project", "submitted", "field", "expected_text"),
    [
        ("p1", submit(runtime="docker"), "spec.runtime", "there is: cluster, other, process"),
        ("p1", submit(profile="big"), "spec.profile", "there is: bound, filled, odd, small"),
        ("p1", submit(profile="odd"), "spec.profile", "no runtime 'moon'"),
        (
            "p1",
            submit(image="debian:12"),
            "spec.image",
            "does not support images; there is: cluster, other",
        ),
        ("p1", submit(profile="filled"), "spec.profile", "runtime process does not support the mounts"),
        ("p1", submit(profile="bound", runtime="cluster"), "spec.profile", "mounts /srv/data, a folder of a host"),
        ("p1", submit(limits=SandboxLimits(memory_mb=8192)), "spec.limits.memory_mb", "at most 4096"),
        ("p1", submit(limits=SandboxLimits(processes=2000)), "spec.limits.processes", "at most 1024"),
        ("p1", submit(ttl_seconds=1001), "spec.ttl_seconds", "at most 1000"),
        ("p1", submit("sbx-1"), "task", "may not begin with 'sbx-'"),
        ("fleet", submit(), "project", "means all projects"),
    ],
)
def test_unavailable_option_is_refused_with_the_available_ones(
    project: str, submitted: SubmitTask, field: str, expected_text: str
) -> None:
    """The refusal names the field."""
    refused = resolve_task(project, submitted, MENU)
    assert isinstance(refused, Refusal)
    assert refused.field == field
    assert expected_text in refused.reason


def test_refusal_without_an_alternative_names_what_is_missing() -> None:
    """This holds for a herd without profiles, without another runtime, and without a runtime that supports images."""
    bare = replace(MENU, profiles={}, runtimes=frozenset({"process"}), imageless=frozenset({"process"}))
    broken = replace(bare, unusable={"process": "no user namespaces"})
    found = [
        resolve_task("p1", submit(profile="big"), bare),
        resolve_task("p1", submit(image="debian:12"), bare),
        resolve_task("p1", submit(), broken),
    ]
    assert [one.reason for one in found if isinstance(one, Refusal)] == [
        "there is no profile 'big' here; no profile is configured",
        "runtime process does not support images; no runtime here does",
        "runtime process can't be used: no user namespaces; no runtime can be used",
    ]


def test_options_of_a_runtime_are_accepted() -> None:
    """An image and a profile's mounts are accepted by a runtime that supports them."""
    assert given(submit(image="debian:12", profile="filled", runtime="other")).runtime == "other"
    assert given(submit(profile="bound", runtime="other")).runtime == "other"
    assert given(submit(profile="filled", runtime="cluster")).runtime == "cluster"


def test_record_retains_its_resolved_values() -> None:
    """A change of the settings does not affect a submitted task; its event has the resolved values."""
    command = command_envelope(submit(profile="small"))
    record = of_task.submitted(command, NOW, TRACE, given(command.data))
    assert (record.limits, record.max_attempts, record.attempt_seconds) == (SMALL, 4, 900)
    assert record.spec.env == {"LEVEL": "debug", "LANG": "C"}
    assert of_task.same_task(record, command_envelope(submit(profile="small")), given(command.data))
    assert not of_task.same_task(
        record, command_envelope(submit(profile="small", env={"LEVEL": "x"})), given(command.data)
    )


# --- dependencies ----------------------------------------------------------------------------------------------------

KNOWN = {"a": [], "b": ["a"], "c": ["b", "x"], "x": ["task-1"]}


@pytest.mark.parametrize(
    ("depends_on", "way"),
    [(["task-1"], "task-1 → task-1"), (["a", "x"], "task-1 → x → task-1"), (["c"], "task-1 → c → x → task-1")],
)
def test_dependency_circle_is_refused_and_shown(depends_on: list[str], way: str) -> None:
    """Circles of one, of two and of many tasks are refused."""
    refused = cycle_refusal("task-1", depends_on, KNOWN.get)
    assert refused is not None
    assert way in refused.reason
    assert refused.field == "spec.depends_on"


def test_dependencies_without_a_circle_are_accepted() -> None:
    """Two paths to the same task, and unknown tasks, are not circles."""
    assert cycle_refusal("task-1", ["a", "b"], KNOWN.get) is None
    assert cycle_refusal("task-1", ["b", "unknown"], KNOWN.get) is None
    assert cycle_refusal("d", ["c", "b", "a"], KNOWN.get) is None


def test_mutual_dependencies_are_detected() -> None:
    """The first task waits until the second is submitted. Then they form a circle."""
    waiting = PendingDependencies()
    waiting.note("p1.one", ("two",))
    assert cycle_refusal("two", ["one"], lambda name: waiting.get(f"p1.{name}")) is not None
    waiting.remove("p1.one")
    assert cycle_refusal("two", ["one"], lambda name: waiting.get(f"p1.{name}")) is None


def test_pending_submissions_are_bounded() -> None:
    """If there are too many, the oldest are dropped."""
    waiting = PendingDependencies()
    for number in range(2000):
        waiting.note(f"p1.t{number}", ("x",))
    assert waiting.get("p1.t0") is None
    assert waiting.get("p1.t1999") == ("x",)


def test_missing_dependency_is_reported() -> None:
    """The refusal has the field and the remedy."""
    refused = missing_refusal(["one", "two"], "p1")
    assert refused.field == "spec.depends_on"
    assert "no task one, two in project p1" in refused.reason


def test_constraints_of_all_levels_reach_the_sandbox() -> None:
    """The event that the monitor reads has the constraints of the herd, the profile, the project and the task."""
    herd = replace(
        MENU,
        constraints=Constraints(paths=("a",)),
        profiles={"small": Profile(constraints=Constraints(commands=("npm publish",)))},
    )
    defaults = ProjectDefaults(constraints=Constraints(permitted=("force_push",)))
    own = Constraints(paths=("a", "b"))
    wanted = resolve_task("p1", submit(profile="small", constraints=own), herd, defaults)
    assert isinstance(wanted, ResolvedTask)
    together = Constraints(paths=("a", "b"), commands=("npm publish",), permitted=("force_push",))
    assert wanted.constraints == together
    task = of_task.submitted(command_envelope(submit()), NOW, TRACE, wanted)
    [event] = requested(task, "sbx-1", NOW).outbox
    assert json.loads(event)["data"]["constraints"] == together.model_dump(mode="json")
    assert given(submit()).constraints is None


def test_too_many_constraints_together_are_refused() -> None:
    """Each level is within the limit, but the monitor stores all constraints together for each sandbox."""
    herd = replace(MENU, constraints=Constraints(paths=tuple(f"herd-{n}" for n in range(10))))
    found = resolve_task("p1", submit(constraints=Constraints(paths=tuple(f"own-{n}" for n in range(10)))), herd)
    assert isinstance(found, Refusal)
    assert (found.field, "20 paths" in found.reason) == ("spec.constraints", True)
