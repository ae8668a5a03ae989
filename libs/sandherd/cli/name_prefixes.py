"""Completes names of tasks and sandboxes: a unique beginning of a generated name stands for the whole name.

The beginning needs at least six letters after the prefix. Names that users or programs choose are not completed. So a
chosen name, or an empty variable in a script, can't select another task or sandbox.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Literal, TypeVar

from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import NAME_LABEL
from sandherd.contracts.names import SANDBOX_PREFIX
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED

Kind = Literal["task", "sandbox"]
PAGE_SIZE: Final = 1000
"""Names in a page."""
MAX_PAGES: Final = 10
"""Maximum number of pages of the live state, and of the history, that are searched for a name."""
_MAX_LISTED: Final = 5
_GENERATED_NAME: Final = re.compile(r"(task|sbx)-[0-9a-hjkmnp-tv-z]{26}")
"""A name that `new_name` has generated. Users and programs may choose other names."""
_COMPLETABLE_BEGINNING: Final = re.compile(r"(task|sbx)-[0-9a-hjkmnp-tv-z]{6,25}")
"""A beginning that is long enough to be completed."""
_TOO_SHORT_BEGINNING: Final = re.compile(r"(task|sbx)-[0-9a-hjkmnp-tv-z]{0,5}")
"""A beginning that is too short to be completed. An error shows the names that begin with it."""
T = TypeVar("T")


def kind_of(name: str) -> Kind:
    """The kind of the entity with this name: names of sandboxes have the prefix `sbx-`, other names are of tasks."""
    return "sandbox" if name.startswith(SANDBOX_PREFIX) else "task"


async def full_name(herd: Herd, name: str, kind: Kind | None = None) -> str:
    """The generated name that begins with `name`. Other names, and beginnings without a match, are returned unchanged.

    Raises `HerdError` with the matches if several names begin with it, or if it is too short. Raises it also if there
    are too many names to search. If the services are unavailable, `name` is returned unchanged: a command with it is
    stored anyway.
    """
    short = _TOO_SHORT_BEGINNING.fullmatch(name) is not None
    if not short and not _COMPLETABLE_BEGINNING.fullmatch(name):
        return name
    kind = kind or kind_of(name)
    try:
        return await _complete(herd, name, kind, short=short)
    except HerdError as error:
        if error.problem.code is Code.INVALID_FIELD:
            raise
        return name


def with_name(name: str, kind: Kind, act: Callable[[Herd, str], Awaitable[T]]) -> Callable[[Herd], Awaitable[T]]:
    """A function that calls `act` with the full name."""

    async def act_on_entity(herd: Herd) -> T:
        try:
            return await act(herd, await full_name(herd, name, kind))
        except HerdError as error:
            raise await with_task_remedy(herd, name, error) from None

    return act_on_entity


async def with_task_remedy(herd: Herd, name: str, error: HerdError) -> HerdError:
    """The error. If no task has this name, its remedy names the task that the user may mean.

    That is the task of the sandbox of this name, or else the newest task that has this name in the file of its batch.
    """
    if error.problem.code is not Code.NOT_FOUND:
        return error
    if kind_of(name) == "sandbox":
        return await _with_task_of_sandbox(herd, name, error) if "no task" in error.problem.message else error
    try:
        tasks = (await herd.tasks(limit=1, labels={NAME_LABEL: name})).items
    except HerdError:  # the first error is the one that matters
        return error
    if not tasks:
        return error
    return _with_remedy(error, f"{name} is the name in its file of {tasks[0].task}: use that name")


async def _with_task_of_sandbox(herd: Herd, sandbox: str, error: HerdError) -> HerdError:
    try:
        task = (await herd.sandbox(sandbox)).task
    except HerdError:  # the first error is the one that matters
        return error
    inspect = f"use `sandherd sandboxes get {sandbox}`"
    return _with_remedy(error, f"it is a sandbox: {f'name its task {task}, or ' if task else ''}{inspect}")


def _with_remedy(error: HerdError, remedy: str) -> HerdError:
    return HerdError(error.problem.model_copy(update={"remedy": remedy}))


async def sandbox_of(herd: Herd, name: str) -> str:
    """The full name of a sandbox. For a task, it is the sandbox of its live or last attempt.

    Raises `HerdError`, also if the task has had no sandbox yet.
    """
    name = await full_name(herd, name)
    if kind_of(name) == "sandbox":
        return name
    try:
        sandbox = (await herd.task(name)).sandbox
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        problem = error.problem.model_copy(update={"message": f"there is no sandbox or task {name}"})
        raise await with_task_remedy(herd, name, HerdError(problem)) from None
    if sandbox is None:
        raise HerdError.of(
            Code.CONFLICT,
            f"{name} has no sandbox yet",
            field="sandbox",
            remedy=f"see what it waits for with `sandherd tasks get {name}`",
        )
    return sandbox


async def live_sandbox_of(herd: Herd, name: str) -> str:
    """Like `sandbox_of`, for a live sandbox. Raises `HerdError` also if the last sandbox of a task has ended."""
    sandbox = await sandbox_of(herd, name)
    if kind_of(name) == "sandbox":
        return sandbox
    view = await herd.sandbox(sandbox)
    if view.state in SANDBOX_ENDED:
        reason = view.error or view.reason
        raise HerdError.of(
            Code.CONFLICT,
            f"{sandbox}, the last sandbox of {name}, is {view.state}" + (f": {reason}" if reason else ""),
            field="sandbox",
            remedy=f"see `sandherd tasks get {name}`",
        )
    return sandbox


async def sandbox_view(herd: Herd, name: str) -> SandboxView:
    """The sandbox of this name, or else the live or last sandbox of the task of this name. Raises `HerdError`."""
    name = await full_name(herd, name)
    try:
        return await herd.sandbox(name)
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND or kind_of(name) == "sandbox":
            raise
    return await herd.sandbox(await sandbox_of(herd, name))


def with_sandbox(name: str, act: Callable[[Herd, str], Awaitable[T]]) -> Callable[[Herd], Awaitable[T]]:
    """A function that calls `act` with the name of this sandbox, or of the live or last sandbox of this task."""

    async def act_on_sandbox(herd: Herd) -> T:
        return await act(herd, await sandbox_of(herd, name))

    return act_on_sandbox


def with_live_sandbox(name: str, act: Callable[[Herd, str], Awaitable[T]]) -> Callable[[Herd], Awaitable[T]]:
    """Like `with_sandbox`, for `live_sandbox_of`."""

    async def act_on_sandbox(herd: Herd) -> T:
        return await act(herd, await live_sandbox_of(herd, name))

    return act_on_sandbox


async def _complete(herd: Herd, name: str, kind: Kind, *, short: bool) -> str:
    """The only name that begins with `name`; `name` itself if it exists, or if no other name begins with it.

    Raises `HerdError` with the matches if there are several, or if `name` is too short (`short`).
    """
    try:
        await (herd.task(name) if kind == "task" else herd.sandbox(name))
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
    else:
        return name
    matches = set(await _matches(herd, name, kind, past=False)) | set(await _matches(herd, name, kind, past=True))
    if len(matches) > 1 or (short and matches):
        raise _ambiguous(name, kind, sorted(matches), short=short)
    return matches.pop() if matches else name


async def _matches(herd: Herd, name: str, kind: Kind, *, past: bool) -> list[str]:
    """Generated names of the live state or of the history that begin with `name`."""
    names = _names(herd, name, kind, past=past)
    return [match async for match in names if match.startswith(name) and _GENERATED_NAME.fullmatch(match)]


async def _names(herd: Herd, name: str, kind: Kind, *, past: bool) -> AsyncIterator[str]:
    """Names of the live state or of the history, newest first. Raises `HerdError` if there are more than searched."""
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        if kind == "task":
            tasks = await herd.tasks(limit=PAGE_SIZE, cursor=cursor, past=past)
            names, cursor = [view.task for view in tasks.items], tasks.next_cursor
        else:
            sandboxes = await herd.sandboxes(limit=PAGE_SIZE, cursor=cursor, past=past)
            names, cursor = [view.sandbox for view in sandboxes.items], sandboxes.next_cursor
        for entity_name in names:
            yield entity_name
        if cursor is None:
            return
    raise HerdError.of(
        Code.INVALID_FIELD,
        f"there are too many names to find the one that begins with {name}",
        field=kind,
        remedy="give the full name",
    )


def _ambiguous(name: str, kind: Kind, matches: list[str], *, short: bool) -> HerdError:
    listed = ", ".join(matches[:_MAX_LISTED]) + (
        f" and {len(matches) - _MAX_LISTED} more" if len(matches) > _MAX_LISTED else ""
    )
    if short:
        problem = f"{name} is too short to stand for a {kind}; these begin with it: {listed}"
        return HerdError.of(Code.INVALID_FIELD, problem, field=kind, remedy="copy the name of one of these")
    problem = f"several names begin with {name}: {listed}"
    return HerdError.of(Code.INVALID_FIELD, problem, field=kind, remedy="give more of its letters")
