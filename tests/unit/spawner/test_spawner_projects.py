"""Decisions about a project's limits and defaults: their sources and maxima, and what a task gets."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.harnesses import HARNESSES
from sandherd.contracts.repositories import ProjectRepository, Repository
from sandherd.contracts.requests import LimitView, ProjectDefaults, ProjectLimits, SandboxView, SetProject
from sandherd.contracts.specs import SandboxLimits as Limits
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import SandboxState
from spawner.projects import project_changes
from spawner.projects.defaults import AppliedDefaults, applicable_defaults, with_defaults
from spawner.spec_resolution import Refusal, SpawnPolicy
from spawner.tasks.capacity import Capacity, SandboxLimits

NOW = datetime(2026, 11, 20, tzinfo=UTC)
SECRET = "a-secret-value"
SHOP = "https://git.example.com/team/shop"
STORED = ArtifactRef(artifact="a", subject="s.a", size=1, sha256="0" * 64, chunks=1)
SESSION: dict[str, Any] = {"task": "t-1", "attempt": 1, "sandbox": "sbx-1", "harness": "claude", "session_id": "s"}
PLAIN: dict[str, Any] = {"text": "do it", "harness": {"kind": "claude"}}


def spec(**harness: Any) -> TaskSpec:
    return TaskSpec.model_validate({"text": "do it", "harness": harness})


def box(name: str, task: str | None, project: str = "p1") -> SandboxView:
    return SandboxView(
        project=project, sandbox=name, task=task, state=SandboxState.RUNNING, runtime="process", requested_at=NOW
    )


@pytest.mark.parametrize(
    ("own", "settings", "maximum", "source"),
    [
        (None, {}, 8, "max_sandboxes"),
        (None, {"project": 5}, 5, "max_sandboxes_per_project"),
        (None, {"project": 5, "projects": {"p1": 3}}, 3, "project_limits"),
        (4, {"projects": {"p1": 3}}, 4, "project"),
        (0, {}, 0, "project"),
        (9, {}, 8, "max_sandboxes"),
    ],
)
def test_limit_in_effect_has_its_source(own: int | None, settings: Any, maximum: int, source: str) -> None:
    """The record precedes the settings. No limit exceeds that of the herd, even if the herd's was lowered later."""
    capacity = Capacity(SandboxLimits(total=8, **settings))
    capacity.set_limits("p1", ProjectLimits(sandboxes=own))
    assert capacity.sandboxes_of("p1") == LimitView(maximum=maximum, source=source)
    assert capacity.tasks_of("p1") == LimitView(maximum=maximum, source=source)


def test_limit_of_tasks_does_not_count_sandboxes_without_a_task() -> None:
    """A limit of tasks prevents tasks only. A limit of sandboxes prevents tasks and sandboxes without a task."""
    capacity = Capacity(SandboxLimits(total=8))
    capacity.set_limits("p1", ProjectLimits(tasks=1, sandboxes=3))
    capacity.change("p1.sbx-1", box("sbx-1", None))
    assert not capacity.project_full("p1")
    capacity.change("p1.sbx-2", box("sbx-2", "task-1"))
    assert capacity.project_full("p1")
    assert capacity.exhausted_limit("p1", "process") == "1 of 1 tasks of project p1 at work"
    assert capacity.exhausted_limit("p1", "process", of_task=False) is None
    assert capacity.exhausted_limit("p2", "process") is None
    capacity.change("p1.sbx-3", box("sbx-3", None))
    assert capacity.exhausted_limit("p1", "process", of_task=False) == "3 of 3 sandboxes of project p1 live"
    assert (capacity.tasks_of("p1").used, capacity.sandboxes_of("p1").used) == (1, 3)
    capacity.remove("p1.sbx-2")
    assert not capacity.project_full("p1")
    capacity.set_limits("p1", None)
    assert capacity.tasks_of("p1") == LimitView(maximum=8, source="max_sandboxes", used=0)


def test_change_touches_only_what_it_names() -> None:
    """Values that a change does not name remain. A repeated change has no effect, so it writes no new revision."""
    made = project_changes.created(
        "p1", SetProject(new=True, limits=ProjectLimits(tasks=2), defaults=ProjectDefaults(model="m", cores=2)), NOW
    )
    request = SetProject(limits=ProjectLimits(sandboxes=3), unset=["cores"], updated_by="ada")
    changed = project_changes.changed(made, request, NOW + timedelta(seconds=5))
    assert changed.limits == ProjectLimits(tasks=2, sandboxes=3)
    assert changed.defaults == ProjectDefaults(model="m")
    assert (changed.created_at, changed.updated_at, changed.updated_by) == (NOW, NOW + timedelta(seconds=5), "ada")
    assert project_changes.changed(changed, request, NOW + timedelta(seconds=9)) is changed


def test_values_above_the_herds_are_refused() -> None:
    """The refusal names the field, and the setting with the maximum."""
    caps = Limits(memory_mb=1024, cores=2)
    for refused in (
        project_changes.limits_refusal(ProjectLimits(tasks=9), 8),
        project_changes.defaults_refusal(ProjectDefaults(memory_mb=2048), caps, []),
        project_changes.defaults_refusal(ProjectDefaults(cores=3), caps, []),
    ):
        assert refused is not None
        assert refused.field.split(".")[1] in refused.reason
        assert "SANDHERD_" in refused.reason
    assert project_changes.limits_refusal(ProjectLimits(tasks=8, sandboxes=0), 8) is None
    refused = project_changes.defaults_refusal(ProjectDefaults(harness="command"), caps, list(HARNESSES))
    assert refused is not None
    assert "can't be a default" in refused.reason


def test_default_limits_never_exceed_the_caps() -> None:
    """Even if the caps were lowered after the default was set, a task that names no limits is not refused."""
    herd = SpawnPolicy(frozenset({"process"}), "process", Limits(memory_mb=512), Limits(memory_mb=1024))
    menu = herd.with_defaults(ProjectDefaults(memory_mb=4096, cores=2, attempt_seconds=60))
    assert (menu.limits(None).memory_mb, menu.limits(None).cores, menu.attempt_seconds) == (1024, 2, 60)
    assert menu.limits(Limits(memory_mb=600)) == Limits(memory_mb=600, cores=2)
    assert herd.with_defaults(ProjectDefaults()) == herd


def test_defaults_fill_what_the_spec_leaves_out() -> None:
    """These are the kind of agent, with the spec's fields for it, the model, and the image if the runtime has any."""
    defaults = ProjectDefaults(harness="claude", model="m", image="python:3.12")
    given = spec(kind="default", max_turns=3)
    found = applicable_defaults("p1", given, defaults, has_images=True)
    assert found == AppliedDefaults(harness="claude", model="m", image="python:3.12")
    assert isinstance(found, AppliedDefaults)
    whole = with_defaults(given, found)
    assert whole.harness == HARNESSES["claude"].model_validate({"kind": "claude", "max_turns": 3, "model": "m"})
    assert (whole.image, given.image, given.harness.kind) == ("python:3.12", None, "default")
    assert applicable_defaults("p1", spec(kind="claude", model="own"), defaults, has_images=False) == AppliedDefaults()
    command = spec(kind="command", argv=["true"]).model_copy(update={"image": "own"})
    assert applicable_defaults("p1", command, defaults, has_images=True) == AppliedDefaults()
    assert with_defaults(command, AppliedDefaults()) is command


def test_default_harness_that_does_not_fit_is_refused() -> None:
    """It is refused without a default, and if the default kind lacks a field. The text has no value of a field."""
    refused = applicable_defaults("p1", spec(kind="default"), ProjectDefaults(), has_images=False)
    assert isinstance(refused, Refusal)
    assert (refused.field, "project p1 has no default harness" in refused.reason) == ("spec.harness", True)
    refused = applicable_defaults(
        "p1", spec(kind="default", argv=[SECRET]), ProjectDefaults(harness="claude"), has_images=False
    )
    assert isinstance(refused, Refusal)
    assert "argv" in refused.field
    assert SECRET not in refused.reason


def test_limit_of_zero_is_stated_with_its_remedy() -> None:
    """The reason names the command that changes the limit: only an operator can change it, not the end of a task."""
    capacity = Capacity(SandboxLimits(total=8))
    capacity.set_limits("p1", ProjectLimits(tasks=0, sandboxes=1))
    text = "the limit of tasks of project p1 is 0; raise it with `sandherd projects set p1 --tasks N`"
    assert capacity.exhausted_limit("p1", "process") == capacity.pause("p1") == text
    assert capacity.exhausted_limit("p1", "process", of_task=False) is None
    capacity.set_limits("p1", ProjectLimits(sandboxes=0))
    text = "the limit of sandboxes of project p1 is 0; raise it with `sandherd projects set p1 --sandboxes N`"
    assert capacity.exhausted_limit("p1", "process", of_task=False) == capacity.pause("p1") == text
    assert capacity.pause("p2") is None


def test_default_repository_is_for_tasks_that_begin_with_nothing_else() -> None:
    """A task has its own repository, or none if it opts out, uploads files, or resumes another one's work tree."""
    defaults = ProjectDefaults(repository=ProjectRepository(url=SHOP, base="next", push=False))
    for own, expected in (
        ({}, Repository(url=SHOP, base="next", push=False)),
        ({"repository": {"url": f"{SHOP}-2"}}, Repository(url=f"{SHOP}-2")),
        ({"no_repository": True}, None),
        ({"work": STORED}, None),
        (
            {"resume": SESSION | {"transcript": STORED}},
            None,
        ),
    ):
        given = TaskSpec.model_validate(PLAIN | own)
        found = applicable_defaults("p1", given, defaults, has_images=False)
        assert isinstance(found, AppliedDefaults)
        whole = with_defaults(given, found)
        assert whole.repository == expected
        assert "no_repository" not in whole.to_json(), "a worker of the last version does not have the field"


def test_task_names_a_repository_or_opts_out() -> None:
    """A task can't do both."""
    with pytest.raises(ValidationError, match="no_repository"):
        TaskSpec.model_validate(PLAIN | {"repository": {"url": SHOP}, "no_repository": True})


def test_strongest_intervention_is_the_tasks_else_its_profiles_else_the_projects() -> None:
    """If none of them sets one, that of the herd applies. It is not passed to the worker."""
    of_project = ProjectDefaults(max_intervention="pause")

    def step(of_profile: Any, defaults: ProjectDefaults) -> Any:
        found = applicable_defaults("p1", spec(kind="claude"), defaults, has_images=True, profile_step=of_profile)
        assert isinstance(found, AppliedDefaults)
        return found.max_intervention

    assert [step("observe", of_project), step(None, of_project), step(None, ProjectDefaults())] == [
        "observe",
        "pause",
        None,
    ]
    assert "max_intervention" not in TaskSpec.model_validate(PLAIN | {"max_intervention": "pause"}).to_json()
