"""Beginnings of names: one that is unique stands for the name, of several all are listed."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandherd.cli.exit_status import run_command
from sandherd.cli.name_prefixes import MAX_PAGES, full_name, sandbox_of
from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import NAME_LABEL

TASK, OTHER = "task-01kahc5x3tf8b9n2m4r6v8w0ya", "task-01kahc5x3tf8b9n2m4r6v8w0yb"
EARLIER = "task-01aaaa5x3tf8b9n2m4r6v8w0ya"
SANDBOX, OTHER_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya", "sbx-01kahc5x3tf8b9n2m4r6v8w0yb"


class Known:
    """A herd with these tasks; one of them has a sandbox."""

    def __init__(self, live: Sequence[str] = (TASK, OTHER), past: Sequence[str] = (EARLIER,)) -> None:
        self.live, self.past = live, past
        self.requests = 0

    async def task(self, name: str) -> Any:
        self.requests += 1
        if name not in {*self.live, *self.past}:
            raise HerdError.of(Code.NOT_FOUND, f"there is no task {name}")
        return SimpleNamespace(task=name, sandbox=SANDBOX if name == TASK else None)

    async def tasks(
        self, *, limit: int, cursor: str | None = None, past: bool = False, labels: dict[str, str] | None = None
    ) -> Any:
        self.requests += 1
        if labels:
            named = [TASK] if labels == {NAME_LABEL: "build"} else []
            return SimpleNamespace(items=[SimpleNamespace(task=name) for name in named], next_cursor=None)
        names = list(self.past if past else self.live)
        at = int(cursor or 0)
        following = str(at + 1) if at + 1 < len(names) else None
        return SimpleNamespace(items=[SimpleNamespace(task=name) for name in names[at : at + 1]], next_cursor=following)


def found(name: str, herd: Any = None) -> str:
    return asyncio.run(full_name(cast("Herd", herd or Known()), name, "task"))


def test_complete_name_needs_no_request() -> None:
    """Most names are copied as a whole."""
    herd = Known()
    assert found(TASK, herd) == TASK
    assert herd.requests == 0


@pytest.mark.parametrize(("name", "task"), [(TASK, TASK), ("task-01aaaa", EARLIER), (EARLIER[:-1], EARLIER)])
def test_unique_prefix_is_a_name(name: str, task: str) -> None:
    """The task may be live, or only in the history."""
    assert found(name) == task


def test_several_matches_are_listed() -> None:
    """The error names them."""
    with pytest.raises(HerdError, match="several names begin with task-01kahc") as raised:
        found("task-01kahc")
    assert TASK in raised.value.line
    assert OTHER in raised.value.line


@pytest.mark.parametrize("given", ["build", "task-01kahu", "sbx-build"])
def test_only_beginnings_of_generated_names_are_completed(given: str) -> None:
    """A name given by a program never stands for another task."""
    herd = Known(live=["build-2", "sbx-build-2", TASK, "task-01kahu-2"], past=[])
    assert found(given, herd) == given
    assert herd.requests == 0


@pytest.mark.parametrize("given", ["task-", "task-01kah"])
def test_few_letters_stand_for_no_task_and_show_what_begins_with_them(given: str) -> None:
    """An empty variable in a script also selects no task. A task with such a name is found; else it is unchanged."""
    with pytest.raises(HerdError, match=f"{given} is too short to stand for a task; these begin with it: {TASK}$"):
        found(given, Known(live=["task-2", TASK], past=[]))
    assert found(given, Known(live=[given, TASK], past=[])) == given
    assert found(given, Known(live=["task-2"], past=[])) == given


def test_only_generated_names_are_matches() -> None:
    """A program's task may be named like the beginning of a generated name."""
    assert found("task-01kahc", Known(live=["task-01kahc-2", "task-01kahc"], past=[])) == "task-01kahc"
    assert found("task-01kahc", Known(live=["task-01kahc-2", TASK], past=[])) == TASK


def test_ended_tasks_are_matches_like_live_ones() -> None:
    """A beginning that may mean an ended task does not stand for a live one."""
    assert found("task-01kahc", Known(live=[TASK], past=[TASK])) == TASK
    with pytest.raises(HerdError, match=f"{TASK}, {OTHER}"):
        found("task-01kahc", Known(live=[TASK], past=[OTHER]))


@pytest.mark.parametrize("past", [False, True])
def test_more_names_than_are_searched_need_the_full_name(*, past: bool) -> None:
    """A match may not be the only one."""
    many = [TASK, *(f"task-{number}" for number in range(MAX_PAGES))]
    with pytest.raises(HerdError, match="too many names to find the one"):
        found("task-01kahc", Known(live=[] if past else many, past=many if past else []))


def test_unmatched_prefix_is_unchanged() -> None:
    """The command then reports that there is no such task."""
    assert found("task-zzzzzz") == "task-zzzzzz"


def test_without_services_the_name_is_unchanged() -> None:
    """A command is stored anyway."""

    class Unavailable(Known):
        async def task(self, name: str) -> Any:
            raise ServiceUnavailableError.named("spawner", "is unavailable")

    assert found("task-01kahc", Unavailable()) == "task-01kahc"


def test_task_stands_for_its_sandbox() -> None:
    """The sandbox is that of its live or last attempt; without one the error states it."""
    assert asyncio.run(sandbox_of(cast("Herd", Known()), TASK)) == SANDBOX
    assert asyncio.run(sandbox_of(cast("Herd", Known()), SANDBOX)) == SANDBOX
    with pytest.raises(HerdError, match="has no sandbox yet"):
        asyncio.run(sandbox_of(cast("Herd", Known()), OTHER))


def test_name_of_neither_kind_is_an_error_about_both() -> None:
    """Where a task may stand for its sandbox, the user may have meant either."""
    with pytest.raises(HerdError, match="there is no sandbox or task nope"):
        asyncio.run(sandbox_of(cast("Herd", Known()), "nope"))


def test_name_in_a_file_leads_to_its_task() -> None:
    """Tables show it beside the task, so it is typed in place of the task; the error keeps its message."""
    with pytest.raises(HerdError, match="there is no sandbox or task build") as raised:
        asyncio.run(sandbox_of(cast("Herd", Known()), "build"))
    assert raised.value.problem.remedy == f"build is the name in its file of {TASK}: use that name"


@pytest.mark.parametrize("verb", ["get", "cancel", "retry"])
def test_sandbox_in_place_of_a_task_leads_to_its_task(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exists: the error names its task, and the command for sandboxes. One that is unknown has the usual remedy."""

    class Herd(Known):
        async def sandbox(self, name: str) -> Any:
            if name != SANDBOX:
                raise HerdError.of(Code.NOT_FOUND, f"there is no sandbox {name}")
            return SimpleNamespace(task=TASK)

    monkeypatch.setattr("sandherd.cli.herd_session.run_with_herd", lambda _ctx, work, **_: asyncio.run(work(Herd())))
    assert [run_command(["tasks", verb, name]) for name in (SANDBOX, OTHER_SANDBOX)] == [1, 1]
    named, unknown = capsys.readouterr().err.splitlines()
    assert named == (
        f"sandherd: there is no task {SANDBOX}; it is a sandbox: name its task {TASK}, "
        f"or use `sandherd sandboxes get {SANDBOX}`"
    )
    assert "it is a sandbox" not in unknown
