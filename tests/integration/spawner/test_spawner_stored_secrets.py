"""Values of secrets in files: every file of the broker and the spawner is searched, with the herd's keys."""

import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from nacl.public import PrivateKey
from nats.js.errors import KeyWrongLastSequenceError

from sandherd.admin.backup import back_up, restore_streams
from sandherd.bus.connection import Bus
from sandherd.bus.identity import SpawnerKeys
from sandherd.client import Herd
from sandherd.contracts.commands import CancelTask, RetryTask, SandboxSpec, TerminateSandbox
from sandherd.contracts.requests import ListSecrets
from sandherd.contracts.subjects import Principal
from sandherd.sealed_secrets import private_key, public_text, seal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.live_state import utc_now
from spawner.main import compose
from spawner.named_secrets.secret_store import SecretStore
from spawner.records.vault import Vault, herd_key
from tests.integration.spawner.conftest import ProjectUser
from tests.integration.spawner.file_thief import CANARY, Thief, context_of, forgotten
from tests.live_files import holding

pytestmark = pytest.mark.own_broker

Eventually = Callable[..., Awaitable[Any]]
Make = Callable[..., Service]
COMMAND = "sandherd.v1.command.spawner.submit_task.p1"
SECRET: dict[str, Any] = {"env": {"TOKEN": CANARY, "PLAIN": "open"}, "secret_env": frozenset({"TOKEN"})}


@asynccontextmanager
async def at_work(spawner: Make, **settings: Any) -> AsyncIterator[Service]:
    async with spawner(keep_secrets=0, **settings).running() as service:
        yield service


async def test_completed_task_leaves_no_value(spawner: Make, person: Any, herd: Broker, thief: Thief) -> None:
    """The value reached the program, was never in clear in a file of the broker, and is deleted at the end."""
    waiting = "&& touch ok; while [ ! -e go ]; do sleep .05; done"
    argv = ["/bin/sh", "-c", f'test "$TOKEN" = {CANARY[:6]}"{CANARY[6:]}" {waiting}']
    async with at_work(spawner):
        task = await person.submit(argv, **SECRET)
        view = await person.reaches(task, "running")
        work = person.home / "sandboxes" / view.sandbox / "work"
        await person.eventually((work / "ok").exists)
        stored = holding(CANARY.encode(), herd.home)
        assert stored == []
        # With the herd's keys it can be opened as well, as long as the task is not done.
        assert any("/" not in found for found in thief.finds())
        (work / "go").touch()
        assert (await person.ended(task)).state == "completed"
        await forgotten(person, herd, thief)


async def test_unsuccessful_task_leaves_no_value(spawner: Make, person: Any, herd: Broker, thief: Thief) -> None:
    """A task that failed, was cancelled or timed out leaves no value, and nothing is stored for a retry."""
    async with at_work(spawner):
        failed, late, cancelled = (
            await person.submit(["false"], **SECRET),
            await person.submit(["sleep", "600"], attempt_seconds=2, **SECRET),
            await person.submit(["sleep", "600"], **SECRET),
        )
        await person.reaches(cancelled, "running")
        await person.command(CancelTask(task=cancelled), cancelled)
        for task, state in ((failed, "failed"), (late, "failed"), (cancelled, "cancelled")):
            view = await person.ended(task)
            assert (view.state, view.secrets_until) == (state, None)
        await forgotten(person, herd, thief)


async def test_failed_task_is_retried_with_its_secrets_until_they_expire(
    spawner: Make, person: Any, herd: Broker, thief: Thief
) -> None:
    """Until the shown expiry a retry has the value; afterwards it is refused, and nothing of the value is left."""
    async with spawner(keep_secrets=600).running():
        argv = ["/bin/sh", "-c", f'test "$TOKEN" = {CANARY[:6]}"{CANARY[6:]}" && exit 3']
        task = await person.submit(argv, **SECRET)
        view = await person.ended(task)
        assert view.state == "failed"
        assert view.error.endswith("3")
        assert (view.secrets_until - view.ended_at).total_seconds() == pytest.approx(600, abs=1)
        assert holding(CANARY.encode(), herd.home) == []
        await person.command(RetryTask(task=task), task)

        async def again() -> Any:
            found = await person.try_task(task)
            return found if found and found.attempt == 2 and found.ended_at else None

        assert (await person.eventually(again)).error.endswith("3")
    async with spawner(keep_secrets=600).running() as service:
        # Another replica, which must read the key, ends the retry time.
        kv = await service.bus.js.key_value("tasks")

        async def let_them_expire() -> bool:
            entry = await kv.get(f"p1.{task}")
            text = (entry.value or b"").decode()
            sooner = re.sub(r'"secrets_until":"[^"]+"', '"secrets_until":"2026-01-01T00:00:00Z"', text)
            assert sooner != text
            with suppress(KeyWrongLastSequenceError):  # the spawner has written it in the meantime
                await kv.update(f"p1.{task}", sooner.encode(), last=entry.revision)
                return True
            return False

        await person.eventually(let_them_expire)

        async def expired() -> bool:
            found = await person.try_task(task)
            return bool(found and found.secrets_until is None)

        await person.eventually(expired)
        await person.command(RetryTask(task=task), task)
        await person.receives(task, "task.refused")
        assert person.event_data(task, "task.refused")["field"] == "spec.secret_env"
        await forgotten(person, herd, thief)


async def test_rejected_and_dead_commands_leave_no_value(
    spawner: Make, person: Any, herd: Broker, thief: Thief
) -> None:
    """A refused task, one with the name of another, and an invalid document leave no value."""
    async with at_work(spawner):
        rejected = await person.submit(["true"], runtime="no-such-runtime", **SECRET)
        await person.receives(rejected, "task.rejected")
        taken = await person.submit(["true"])
        await person.submit(["false"], task=taken, **SECRET)
        await person.receives(taken, "task.refused")
        await dead_commands(person.bus)
        async with herd.bus(Principal.SPAWNER) as bus:

            async def dead() -> bool:
                state = (await bus.js.stream_info("DEAD")).state
                return state.messages == 3 and (await bus.js.stream_info("COMMANDS")).state.messages == 0

            await person.eventually(dead)
        await forgotten(person, herd, thief)


async def test_sandbox_without_a_task_and_batch_leave_no_value(
    spawner: Make, person: Any, herd: Broker, thief: Thief
) -> None:
    """Sandboxes claimed from the warm pool for several tasks leave no value."""
    async with at_work(spawner, max_sandboxes=4):
        sandbox = await person.create(**SECRET)
        await person.sandbox_is(sandbox, "running")
        tasks = [await person.submit(["true"], **SECRET) for _ in range(4)]
        for task in tasks:
            assert (await person.ended(task)).state == "completed"
        await person.command(TerminateSandbox(sandbox=sandbox, reason="done"), sandbox)
        await forgotten(person, herd, thief)


async def test_unerased_key_is_erased_later(spawner: Make, person: Any, herd: Broker, thief: Thief) -> None:
    """If the broker is killed while tasks end, and restarted, no key is left."""
    async with at_work(spawner):
        tasks = [await person.submit(["/bin/sh", "-c", "sleep 0.5"], **SECRET) for _ in range(4)]
        await person.receives(tasks[0], "task.running")
        await herd.kill()
        await herd.restart()
        for task in tasks:
            await person.ended(task)
        await forgotten(person, herd, thief)


async def test_unneeded_key_is_erased(spawner: Make, person: Any, herd: Broker) -> None:
    """A key that a killed spawner did not erase is erased later; a needed key stays."""
    async with spawner(keep_secrets=600).running() as service:
        vault = Vault(service.bus, vault_key(herd))
        retained = await person.submit(["false"], **SECRET)
        await person.ended(retained)
        sealed = await vault.seal("tasks.p1.gone", CANARY)
        stored = await SecretStore(service.bus, utc_now, vault).put("p1", "k", CANARY, None)
        await vault.seal(f"secrets.p1.k.{'0' * 32}", CANARY)  # the key of a value that was replaced

        async def erased() -> bool:
            return await vault.names() == {f"tasks.p1.{retained}", f"secrets.{stored.vault_key}"}

        await person.eventually(erased)
        assert await Vault(service.bus, vault_key(herd)).open("tasks.p1.gone", sealed) is None


async def test_keys_of_another_herd_are_replaced(spawner: Make, person: Any, herd: Broker) -> None:
    """A key of another herd, from before new keys were created, opens nothing, and a record gets a new one."""
    async with spawner().running() as service:
        before, now = Vault(service.bus, bytes(32)), Vault(service.bus, vault_key(herd))
        old = await before.seal("tasks.p1.same", CANARY)
        assert await now.open("tasks.p1.same", old) is None
        new = await now.seal("tasks.p1.same", "another")
        assert await Vault(service.bus, vault_key(herd)).open("tasks.p1.same", new) == "another"
        assert await Vault(service.bus, bytes(32)).open("tasks.p1.same", old) is None


def vault_key(herd: Broker) -> bytes:
    return herd_key(SpawnerKeys.read(herd.spawner_identity).worker.seed)


async def dead_commands(bus: Bus) -> None:
    """Documents that are no submit_task of any version, with the value in several places."""
    env = {"TOKEN": CANARY}
    cases: tuple[dict[str, Any], ...] = (
        {"text": CANARY, "env": env, "future_field": CANARY},
        {"env": [CANARY]},
        {"env": env, "harness": {"x": CANARY}},
    )
    for number, broken in enumerate(cases):
        spec = {"text": "x", "harness": {"kind": "command", "argv": ["x"]}, "secret_env": ["TOKEN"], **broken}
        document = json.dumps({"data": {"task": "t", "spec": spec}}).encode()
        await bus.publish_stored(COMMAND, document, msg_id=f"dead-{number}")


async def test_client_seals_its_secrets_before_sending(spawner: Make, person: Any, herd: Broker, thief: Thief) -> None:
    """While no spawner accepts a command, it waits without the value; then its task and its sandbox have the value."""
    spec = person.spec(["/bin/sh", "-c", f'test "$TOKEN" = {CANARY[:6]}"{CANARY[6:]}"'], **SECRET)
    async with Herd.connect(context_of(herd)) as alice:
        async with at_work(spawner):
            task = await alice.submit(spec)
            assert (await person.ended(task)).state == "completed"
            sandbox = await alice.create(SandboxSpec(**SECRET))
            assert sandbox is not None
            await person.command(TerminateSandbox(sandbox=sandbox.sandbox, reason="done"), sandbox.sandbox)
            await person.all_gone()
        task = await alice.submit(spec)
        async with herd.bus(Principal.SPAWNER) as bus:
            assert (await bus.js.stream_info("COMMANDS")).state.messages == 1
        assert holding(CANARY.encode(), herd.home) == []
        async with at_work(spawner):
            assert (await person.ended(task)).state == "completed"
            await forgotten(person, herd, thief)


async def test_secrets_sealed_for_another_herd_are_refused(spawner: Make, person: Any, herd: Broker) -> None:
    """Secrets sealed for another herd, and values for undeclared names, are refused."""
    async with at_work(spawner):
        own = public_text(private_key(SpawnerKeys.read(herd.spawner_identity).worker.seed))
        other = public_text(PrivateKey.generate())
        for number, (values, key) in enumerate((({"TOKEN": CANARY}, other), ({"PATH": CANARY}, own), ({}, own))):
            spec = {"env": {"TOKEN": ""}, "secret_env": frozenset({"TOKEN"}), "sealed": seal(values, key)}
            task = await person.submit(["true"], task=f"sealed-{number}", **spec)
            await person.receives(task, "task.rejected")
            assert person.event_data(task, "task.rejected")["field"] == "spec.sealed"


@pytest.mark.parametrize("with_secrets", [False, True])
async def test_backup_has_no_secrets_unless_requested(
    spawner: Make, person: Any, herd: Broker, tmp_path: Path, *, with_secrets: bool
) -> None:
    """The herd's keys open no secret in a backup without them, neither those of a retryable task nor named ones."""
    named = "canary-90ab-of-a-named-secret"
    async with spawner(keep_secrets=600).running():
        async with Herd.connect(context_of(herd)) as alice:
            await alice.set_secret("k", named)
        task = await person.submit(["false"], **SECRET)
        assert (await person.ended(task)).secrets_until is not None
        await person.all_gone()
    folder, thiefs = tmp_path / "backup", Broker(tmp_path / "thief")
    await back_up(context_of(herd), herd.home / "identity", folder, with_secrets=with_secrets)
    shutil.copytree(herd.home / "identity", tmp_path / "thief" / "identity")
    async with thiefs:
        await restore_streams(context_of(thiefs), thiefs.home / "identity", folder, None)
        assert holding(CANARY.encode(), tmp_path) == []
        assert bool(Thief(thiefs, folder).finds()) == with_secrets
        assert bool(Thief(thiefs, folder).finds(named)) == with_secrets
        if not with_secrets:
            settings = thiefs.settings(Principal.SPAWNER, home=tmp_path / "other", keep_secrets=600)
            async with compose(settings).running(), thiefs.bus(Principal.CLIENT, project="p1") as bus:
                again = ProjectUser(bus, person.eventually, tmp_path / "other")
                await again.listen()
                await again.command(RetryTask(task=task), task)
                await again.receives(task, "task.refused")
                assert again.event_data(task, "task.refused")["field"] == "spec.secret_env"
                (left,) = (await bus.ask(ListSecrets(), "p1")).secrets
                assert (left.name, left.readable) == ("k", False)
                needy = await again.submit(["true"], secrets={"TOKEN": "k"})
                assert "set it again with `sandherd secrets set k`" in str((await again.ended(needy)).error)
