"""Retries of failed tasks: with their files, and with new values of expired secrets."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sandherd.cli.exit_status import run_command
from sandherd.contracts.commands import RetryTask
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.integration.spawner.file_thief import CANARY, Thief, context_of, forgotten

Make = Callable[..., Service]
NEW = "canary-77aa-of-a-new-value"
NEEDS = f'test "$TOKEN" = {NEW[:8]}"{NEW[8:]}" && test "$(cat in/input.txt)" = hello || exit 3'


@pytest.fixture
def retry(herd: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `sandherd tasks retry` as a user of project p1; returns its status, output and errors."""
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    context = context_of(herd)
    place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]

    async def run(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(run_command, [*place, "tasks", "retry", *words, "--project", "p1"])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


async def again(person: Any, task: str, attempt: int) -> Any:
    """Wait for the end of this attempt."""

    async def look() -> Any:
        view = await person.try_task(task)
        return view if view and view.attempt == attempt and view.ended_at else None

    return await person.eventually(look)


@pytest.mark.own_broker
async def test_expired_secrets_are_needed_again_and_files_are_retained(
    spawner: Make, person: Any, herd: Broker, thief: Thief, retry: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal an error names the option for an expired secret; an option or a prompt gives its value."""
    files = {"in/input.txt": "hello"}
    async with spawner(keep_secrets=0).running():
        task, other = [
            await person.submit(
                ["/bin/sh", "-c", NEEDS], files=files, env={"TOKEN": CANARY}, secret_env=frozenset({"TOKEN"})
            )
            for _ in range(2)
        ]
        view = await person.ended(task)
        assert (view.state, view.error[-1], view.secret_env) == ("failed", "3", ["TOKEN"])
        status, _, err = await retry(task)
        assert (status, "add --secret-env TOKEN" in err) == (2, True)
        monkeypatch.setenv("TOKEN", NEW)
        assert (await retry(task, "--secret-env", "TOKEN"))[0] == 0
        assert (await again(person, task, 2)).state == "completed"
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("sandherd.cli.parse.secret_input.read_hidden", lambda what: NEW if "TOKEN" in what else "")
        assert (await person.ended(other)).state == "failed"
        assert (await retry(other))[0] == 0
        assert (await again(person, other, 2)).state == "completed"
        await person.eventually(lambda: not thief.finds(NEW))
        await forgotten(person, herd, thief)
        assert thief.finds(NEW) == []


async def test_failed_task_with_files_is_retried(spawner: Make, person: Any) -> None:
    """Another spawner, which has to read the files, can also retry a failed task."""
    argv = ["/bin/sh", "-c", "grep -q hello input.txt && exit 4"]
    async with spawner().running():
        task = await person.submit(argv, files={"input.txt": "hello"})
        assert (await person.ended(task)).error.endswith("4")
    async with spawner().running():
        await person.command(RetryTask(task=task), task)
        assert (await again(person, task, 2)).error.endswith("4")
        await person.all_gone()
