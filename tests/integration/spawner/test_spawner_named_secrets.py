"""Named secrets are set, referenced, resolved for each attempt, deleted, and protected from others."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from sandherd.bus.connection import Bus
from sandherd.bus.identity import SpawnerKeys
from sandherd.cli.exit_status import run_command
from sandherd.client import Herd
from sandherd.client.errors import HerdError
from sandherd.contracts.commands import RetryTask, TerminateSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import ListSecrets, SetSecret
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.sealed_secrets import private_key, public_text, seal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.integration.spawner.file_thief import CANARY, Thief, context_of, forgotten
from tests.live_files import holding
from tests.patience import PATIENCE

Make = Callable[..., Service]
SECOND = "canary-5c0d-of-a-rotated-value"


def needs(value: str) -> list[str]:
    """A program that succeeds with this value in TOKEN; the program's text does not contain the value."""
    return ["/bin/sh", "-c", f'test "$TOKEN" = {value[:8]}"{value[8:]}" || exit 3']


@pytest.fixture
def sandherd(herd: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the command as a user of project p1, with this text on standard input."""
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    context = context_of(herd)
    place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]

    async def run(*words: str, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        status = await asyncio.to_thread(run_command, [*place, *words, "--project", "p1"])
        shown = capsys.readouterr()
        assert CANARY not in shown.out + shown.err
        return status, shown.out, shown.err

    return run


async def ended_as(person: Any, task: str, attempt: int) -> str:
    async def look() -> Any:
        view = await person.try_task(task)
        return view if view and view.attempt == attempt and view.ended_at else None

    return str((await person.eventually(look)).state)


@pytest.mark.own_broker
async def test_task_gets_the_secret_value_stored_at_its_start(
    spawner: Make, person: Any, herd: Broker, thief: Thief, sandherd: Callable[..., Any]
) -> None:
    """A secret is set, listed, rotated, used by a retry and a sandbox, and deleted; then no file has its value."""
    async with spawner(keep_secrets=0).running(), Herd.connect(context_of(herd)) as alice:
        assert (await sandherd("secrets", "set", "deploy-key", given=f"{CANARY}\n"))[0] == 0
        task = await person.submit(needs(SECOND), secrets={"TOKEN": "deploy-key"}, files={"a": "b"})
        assert await ended_as(person, task, 1) == "failed"
        assert holding(CANARY.encode(), herd.home) == []
        await alice.set_secret("deploy-key", SECOND, by="ada")
        await person.eventually(lambda: not thief.finds(CANARY))
        await person.command(RetryTask(task=task), task)
        assert await ended_as(person, task, 2) == "completed"
        sandbox = await person.create(secrets={"TOKEN": "deploy-key"})
        await person.sandbox_is(sandbox, "running")
        shown = json.loads((await sandherd("secrets", "list", "-o", "json"))[1])["secrets"]
        assert [(one["name"], one["updated_by"], one["tasks"], one["readable"]) for one in shown] == [
            ("deploy-key", "ada", 0, True)
        ]
        assert shown[0]["created_at"] < shown[0]["updated_at"]
        await person.command(TerminateSandbox(sandbox=sandbox, reason="done"), sandbox)
        assert (await sandherd("secrets", "delete", "deploy-key"))[0] == 0
        await person.all_gone()
        await person.eventually(lambda: not thief.finds(SECOND))
        await forgotten(person, herd, thief)
        assert thief.finds(SECOND) == []


async def test_unknown_secret_is_refused(
    spawner: Make, person: Any, herd: Broker, sandherd: Callable[..., Any]
) -> None:
    """With an unknown secret the command sends nothing; the spawner refuses tasks and sandboxes, naming the remedy."""
    async with spawner().running():
        status, _, err = await sandherd("run", "x", "--secret", "TOKEN=k", "--no-follow", "--", "true")
        assert status == 1
        assert "there is no secret k in project p1; store it with `sandherd secrets set k`" in err
        task = await person.submit(["true"], secrets={"TOKEN": "k"})
        await person.receives(task, "task.rejected")
        sandbox = await person.create(secrets={"TOKEN": "k"})
        await person.receives(sandbox, "sandbox.refused")
        for refusal in (person.event_data(task, "task.rejected"), person.event_data(sandbox, "sandbox.refused")):
            assert refusal["field"] == "spec.secrets"
            assert "sandherd secrets set k" in refusal["reason"]
        assert (await sandherd("secrets", "delete", "k"))[0] == 1


async def test_deletion_of_a_needed_secret_has_to_be_forced(
    spawner: Make, person: Any, herd: Broker, sandherd: Callable[..., Any]
) -> None:
    """After a forced deletion a running task keeps its value; a later one fails with the remedy until a new `set`."""
    retry = {"max_attempts": 2, "first_delay_seconds": 0, "also": ["exit_status"]}
    argv = ["/bin/sh", "-c", 'touch ok; while [ ! -e go ]; do sleep .05; done; test "${TOKEN%x}" = not-this']
    async with spawner().running(), Herd.connect(context_of(herd)) as alice:
        await alice.set_secret("k", CANARY)
        task = await person.submit(argv, secrets={"TOKEN": "k"}, retry=retry)
        view = await person.eventually(lambda: at_work(person, task, 1))
        assert (await alice.secrets()).secrets[0].tasks == 1
        status, _, err = await sandherd("secrets", "delete", "k")
        assert (status, task in err, "--force" in err) == (1, True, True)
        assert (await sandherd("secrets", "delete", "k", "--force"))[0] == 0
        let_go(person, view)
        assert await ended_as(person, task, 2) == "failed"
        assert "sandherd secrets set k" in (await person.task(task)).error
        with pytest.raises(HerdError) as caught:
            await alice.retry(task)
        assert caught.value.problem.field == "spec.secrets"
        await alice.set_secret("k", "not-this")
        await alice.retry(task)
        let_go(person, await person.eventually(lambda: at_work(person, task, 3)))
        assert await ended_as(person, task, 3) == "completed"
        await person.all_gone()


def let_go(person: Any, view: Any) -> None:
    (person.home / "sandboxes" / view.sandbox / "work" / "go").touch()


async def at_work(person: Any, task: str, attempt: int) -> Any:
    view = await person.try_task(task)
    if view is None or view.attempt != attempt or view.state != "running":
        return None
    return view if (person.home / "sandboxes" / view.sandbox / "work" / "ok").exists() else None


async def test_secret_is_neither_read_nor_overwritten_by_others(spawner: Make, person: Any, herd: Broker) -> None:
    """Another project's client, a subscriber and a worker can't read or overwrite it; a foreign sealed value fails."""
    key = public_text(private_key(SpawnerKeys.read(herd.spawner_identity).worker.seed))
    async with spawner().running(), Herd.connect(context_of(herd)) as alice:
        await alice.set_secret("k", CANARY)
        ours = SetSecret(name="k", sealed=seal({"p1/k": "overwritten"}, key)).model_dump_json().encode()
        for principal, project in (
            (Principal.CLIENT, "p2"),
            (Principal.SUBSCRIBER, "p1"),
            (Principal.WORKER, "p1"),
            (Principal.MONITOR, "p1"),
            (Principal.EVENT_INGEST, "p1"),
            (Principal.MESSAGE_RELAY, "p1"),
        ):
            async with herd.bus(principal, project=project, sandbox="sbx-1") as thiefs:
                for request in ("spawner.set_secret", "spawner.secrets", "spawner.delete_secret"):
                    await unheard(thiefs, request_subject(request, "p1"), ours)
                for subject in ("$JS.API.DIRECT.GET.KV_secrets.$KV.secrets.p1.k", "$JS.API.STREAM.INFO.KV_secrets"):
                    await unheard(thiefs, subject, b"")
                await unheard(thiefs, "$KV.secrets.p1.k", b"{}")
        async with herd.bus(Principal.CLIENT, project="p2") as bus:
            assert (await bus.ask(ListSecrets(), "p2")).secrets == []
            for member in ("p1/k", "p2/other", "TOKEN"):
                replayed = SetSecret(name="k", sealed=seal({member: CANARY}, key))
                with pytest.raises(Exception, match="sealed for another herd, project or name"):
                    await bus.ask(replayed, "p2")
        view = (await alice.secrets()).secrets[0]
        assert (view.name, view.created_at) == ("k", view.updated_at)
        with pytest.raises(HerdError) as caught:
            await alice.set_secret("k", "abc")
        assert (caught.value.problem.code, "4 to 16384 bytes" in caught.value.problem.message) == (
            Code.INVALID_FIELD,
            True,
        )


async def unheard(bus: Bus, subject: str, data: bytes) -> None:
    """Check that the broker does not deliver this message."""
    before = bus.violations
    await bus.client.publish(subject, data)
    for _ in range(2):  # nats-py writes a flush's PING before the messages that it still has to send
        await bus.client.flush(timeout=PATIENCE)
    assert bus.violations == before + 1, subject
