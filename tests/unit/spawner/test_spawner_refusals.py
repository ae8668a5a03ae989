"""What a task is given, and which are not taken: each refusal names the field, and says what is allowed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, Retry, SubmitTask, TaskSpec
from sandherd.contracts.requests import Mount, Profile
from sandherd.contracts.specs import Limits
from sandherd.settings import Settings
from spawner.resolving import Menu, Refusal
from spawner.runtimes.contract import Capabilities, Isolation
from spawner.tasks import decisions as of_task
from spawner.tasks.dependencies import Waiting, absent, circle
from spawner.tasks.terms import Terms, terms_of
from tests.unit.spawner.test_spawner_retry import TRACE, said

NOW = datetime(2026, 11, 20, tzinfo=UTC)
SMALL = Limits(memory_mb=512)
MENU = Menu.of(
    Settings(
        profiles={
            "small": Profile(limits=SMALL, env={"LEVEL": "debug", "LANG": "C"}),
            "odd": Profile(runtime="moon"),
            "filled": Profile(mounts=(Mount(source="data", target="/data"),)),
        },
        caps=Limits(memory_mb=4096, cpu_seconds=7200, open_files=2048, processes=1024),
        max_attempts=4,
        attempt_timeout=900,
        max_ttl=1000,
        sandbox_mounts=frozenset({"data"}),
    ),
    {
        "process": Capabilities(Isolation.NONE, "none", "none"),
        "other": Capabilities(Isolation.PROVIDER, "provider", "provider", images=True, mounts=True),
    },
)


def submit(task: str = "task-1", **spec: Any) -> SubmitTask:
    return SubmitTask(task=task, spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), **spec))


def given(submitted: SubmitTask) -> Terms:
    found = terms_of("p1", submitted, MENU)
    assert isinstance(found, Terms)
    return found


def test_what_is_left_out_comes_from_the_profile_and_then_from_the_settings() -> None:
    """And what is said stands."""
    plain, small = given(submit()), given(submit(profile="small", env={"LEVEL": "info"}))
    assert (plain.runtime, plain.limits.memory_mb, plain.max_attempts, plain.attempt_seconds) == (
        "process",
        2048,
        4,
        900,
    )
    assert (small.limits, small.env) == (SMALL, {"LEVEL": "info", "LANG": "C"})
    own = given(
        submit(profile="small", runtime="other", limits=Limits(memory_mb=64), attempt_seconds=5,
               retry=Retry(max_attempts=1))
    )  # fmt: skip
    assert (own.runtime, own.limits.memory_mb, own.max_attempts, own.attempt_seconds) == ("other", 64, 1, 5)


@pytest.mark.parametrize(
    ("project", "submitted", "field", "says"),
    [
        ("p1", submit(runtime="docker"), "spec.runtime", "there is: other, process"),
        ("p1", submit(profile="big"), "spec.profile", "there is: filled, odd, small"),
        ("p1", submit(profile="odd"), "spec.profile", "no runtime 'moon'"),
        (
            "p1",
            submit(image="debian:12"),
            "spec.image",
            "a runtime that does; there is: other",
        ),
        ("p1", submit(profile="filled"), "spec.profile", "runtime process can't mount"),
        ("p1", submit(limits=Limits(memory_mb=8192)), "spec.limits.memory_mb", "at most 4096"),
        ("p1", submit(limits=Limits(processes=2000)), "spec.limits.processes", "at most 1024"),
        ("p1", submit(ttl_seconds=1001), "spec.ttl_seconds", "at most 1000"),
        ("p1", submit("sbx-1"), "task", "may not begin with 'sbx-'"),
        ("fleet", submit(), "project", "stands for all projects"),
    ],
)
def test_what_can_not_be_had_is_refused_with_what_can(
    project: str, submitted: SubmitTask, field: str, says: str
) -> None:
    """The field is the one that asked for it."""
    refused = terms_of(project, submitted, MENU)
    assert isinstance(refused, Refusal)
    assert refused.field == field
    assert says in refused.reason


def test_what_a_runtime_can_do_is_had_from_it() -> None:
    """An image, and what a profile mounts, where there is a runtime for that."""
    assert given(submit(image="debian:12", profile="filled", runtime="other")).runtime == "other"


def test_a_record_keeps_what_it_was_given() -> None:
    """So that a change of the settings is none of a task that was taken; its submission says what it will be."""
    command = said(submit(profile="small"))
    record = of_task.submitted(command, NOW, TRACE, given(command.data))
    assert (record.limits, record.max_attempts, record.attempt_seconds) == (SMALL, 4, 900)
    assert record.spec.env == {"LEVEL": "debug", "LANG": "C"}
    assert of_task.same_task(record, said(submit(profile="small")), given(command.data))
    assert not of_task.same_task(record, said(submit(profile="small", env={"LEVEL": "x"})), given(command.data))


# --- dependencies ----------------------------------------------------------------------------------------------------

KNOWN = {"a": [], "b": ["a"], "c": ["b", "x"], "x": ["task-1"]}


@pytest.mark.parametrize(
    ("depends_on", "way"),
    [(["task-1"], "task-1 → task-1"), (["a", "x"], "task-1 → x → task-1"), (["c"], "task-1 → c → x → task-1")],
)
def test_a_circle_is_refused_and_shown(depends_on: list[str], way: str) -> None:
    """Of one, of two, of many."""
    refused = circle("task-1", depends_on, KNOWN.get)
    assert refused is not None
    assert way in refused.reason
    assert refused.field == "spec.depends_on"


def test_what_is_no_circle_is_taken() -> None:
    """Also where two ways lead to the same, and through tasks that are not known."""
    assert circle("task-1", ["a", "b"], KNOWN.get) is None
    assert circle("task-1", ["b", "unknown"], KNOWN.get) is None
    assert circle("d", ["c", "b", "a"], KNOWN.get) is None


def test_two_that_wait_for_each_other_are_found_out() -> None:
    """The first waits for the second to be submitted; when that comes, it is seen to be a circle."""
    waiting = Waiting()
    waiting.note("p1.one", ("two",))
    assert circle("two", ["one"], lambda name: waiting.get(f"p1.{name}")) is not None
    waiting.forget("p1.one")
    assert circle("two", ["one"], lambda name: waiting.get(f"p1.{name}")) is None


def test_submissions_that_wait_do_not_fill_the_memory() -> None:
    """Of very many, the oldest are forgotten."""
    waiting = Waiting()
    for number in range(2000):
        waiting.note(f"p1.t{number}", ("x",))
    assert waiting.get("p1.t0") is None
    assert waiting.get("p1.t1999") == ("x",)


def test_a_missing_dependency_is_named() -> None:
    """With what to do about it."""
    refused = absent(["one", "two"], "p1")
    assert refused.field == "spec.depends_on"
    assert "no task one, two in project p1" in refused.reason
