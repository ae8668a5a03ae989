"""Webhooks of a project, with a real broker, spawner and relay, and a real HTTP server that receives them."""

import asyncio
import base64
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from message_relay.webhooks import partition, retry_rules
from message_relay.webhooks.store import StoredWebhook, WebhookStore
from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.cli.exit_status import run_command
from sandherd.client import Herd, HerdError
from sandherd.stack.broker import Broker
from tests.integration.message_relay.webhook_endpoint import Endpoint, is_signed
from tests.integration.message_relay.webhook_herd import ONE, TWO, context_of, create, is_idle, relay_of, workers
from tests.integration.spawner.file_thief import Thief
from tests.live_files import contents_below
from tests.patience import PATIENCE
from tests.polling import eventually


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send events again at once, at most three times."""
    monkeypatch.setattr(retry_rules, "RETRIES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(partition, "SCANNED_EVERY", 0.1)


async def test_events_come_signed_in_order_despite_failures(herd: Broker, user: Herd, endpoint: Endpoint) -> None:
    """Each event is sent until it is accepted, in order for its sandbox, with one id; others are not delayed by it."""
    async with relay_of(herd).running(), workers(herd) as publish:
        await publish(1)
        secret = await create(user, "hook", f"{endpoint.url}/hook", types=["agent"], start="all")
        await create(user, "narrow", f"{endpoint.url}/narrow", entities=[TWO])
        await create(user, "silent", f"{endpoint.url}/silent", start="all")
        endpoint.statuses["hook"] = [500, 302, 429]
        await publish(2, 3)
        await eventually(lambda: len(set(endpoint.accepted["hook"])) == 6, "all are accepted")
        assert (endpoint.of("hook", ONE), endpoint.of("hook", TWO)) == ([1, 2, 3], [1, 2, 3])
        assert (len(endpoint.ids["hook"]) >= 9, len(set(endpoint.ids["hook"]))) == (True, 6)
        assert not endpoint.ids["elsewhere"]
        await eventually(lambda: endpoint.of("narrow", TWO) == [2, 3], "only what its filter has")
        assert not endpoint.of("narrow", ONE)
        headers, body = endpoint.last["hook"]
        assert is_signed(secret, headers, body)
        assert not is_signed(secret, headers, body + b" ")
        await eventually(partial(is_idle, user, "hook"), "what is handled is stored")
        assert (await user.webhook("hook")).accepted_at is not None


async def test_relay_killed_before_it_stores_sends_again(
    herd: Broker, user: Herd, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accepted event that was not recorded is sent again, with the same id, before later ones."""
    accepted = asyncio.Event()

    async def lost(_store: WebhookStore, record: WebhookRecord, over: StoredWebhook) -> None:
        """Discard the relay's writes after an acceptance, as if it was killed."""
        if record.accepted_at is None:
            await write(_store, record, over)
            return
        accepted.set()
        await asyncio.Event().wait()

    write = WebhookStore.write
    async with workers(herd) as publish:
        with monkeypatch.context() as patched:
            patched.setattr(WebhookStore, "write", lost)
            async with relay_of(herd).running():
                await create(user, "hook", f"{endpoint.url}/hook")
                await publish(1, sandboxes=(ONE,))
                await accepted.wait()
        async with relay_of(herd).running():
            await publish(2, sandboxes=(ONE,))
            await eventually(lambda: endpoint.of("hook", ONE)[-1] == 2, "it continues")
    assert endpoint.of("hook", ONE) == [1, 2]
    assert endpoint.ids["hook"].count(endpoint.ids["hook"][0]) >= 2
    assert len(set(endpoint.ids["hook"])) == 2


async def test_two_replicas_deliver_each_event_in_order(herd: Broker, user: Herd, endpoint: Endpoint) -> None:
    """One replica delivers a webhook; when it ends, the other one continues, and no event is missing."""
    async with workers(herd) as publish, AsyncExitStack() as rest:
        async with relay_of(herd).running():
            await rest.enter_async_context(relay_of(herd).running())
            for number in range(4):
                await create(user, f"hook-{number}", f"{endpoint.url}/hook-{number}")
            await publish(*range(1, 11))
            for number in range(4):
                await eventually(partial(endpoint.has, f"hook-{number}", 20), "all are delivered")
                await eventually(partial(is_idle, user, f"hook-{number}"), "what is handled is stored")
        await publish(11)
        for number in range(4):
            name = f"hook-{number}"
            await eventually(partial(endpoint.has, name, 22), "the other one continues")
            assert endpoint.of(name, ONE) == [*range(1, 12)]
            assert len(set(endpoint.ids[name])) == 22


async def test_dead_letters_disabled_webhooks_and_replays(herd: Broker, user: Herd, endpoint: Endpoint) -> None:
    """An event that is never accepted is a dead letter, and can be sent again; 410 disables the webhook.

    A replay begins at the requested position.
    """
    async with relay_of(herd).running(), workers(herd) as publish:
        await create(user, "hook", f"{endpoint.url}/hook")
        await create(user, "watch", f"{endpoint.url}/watch", types=["webhook"])
        endpoint.refused["hook"] = {1: 500}
        await publish(1, 2, sandboxes=(ONE,))
        await eventually(lambda: endpoint.of("hook", ONE) == [2], "the next one comes behind it")
        found = await eventually(partial(_with_dead, user, "hook"), "it is a dead letter")
        assert [(one.subject, one.type, one.reason) for one in found.dead_letters] == [
            (ONE, "agent.message", "status 500")
        ]
        endpoint.refused["hook"] = {}
        await user.replay_webhook("hook", dead_letters=True)
        await eventually(lambda: endpoint.of("hook", ONE) == [2, 1], "it is sent again")
        assert not (await user.webhook("hook")).dead_letters

        endpoint.refused["hook"] = {3: 410}
        await publish(3, 4, sandboxes=(ONE,))
        await eventually(lambda: "webhook.disabled" in endpoint.types["watch"], "that is published")
        assert (await user.webhook("hook")).state == "disabled"
        assert endpoint.of("hook", ONE) == [2, 1]
        endpoint.refused["hook"] = {}
        await user.replay_webhook("hook")
        await eventually(lambda: endpoint.of("hook", ONE) == [2, 1, 3, 4], "it continues where it stopped")
        before = len(endpoint.accepted["hook"])
        await user.replay_webhook("hook", start=found.dead_letters[0].sequence)
        await eventually(lambda: endpoint.accepted["hook"][before:][-1:] == [(ONE, 4)], "the last one comes again")
        again = [number for subject, number in endpoint.accepted["hook"][before:] if subject == ONE]
        assert [*dict.fromkeys(again)] == [1, 2, 3, 4]


async def _with_dead(user: Herd, name: str) -> Any:
    found = await user.webhook(name)
    return found if found.dead else None


async def test_receiver_that_fails_for_too_long_is_disabled(herd: Broker, user: Herd, endpoint: Endpoint) -> None:
    """After the time of the setting nothing more is sent, and the event about that is published once."""
    async with relay_of(herd, webhook_disable_after=0.001).running(), workers(herd) as publish:
        await create(user, "watch", f"{endpoint.url}/watch", types=["webhook.disabled"])
        await create(user, "hook", f"{endpoint.url}/hook", types=["agent"])
        endpoint.refused["hook"] = {1: 500}
        await publish(1, sandboxes=(ONE,))
        await eventually(lambda: "webhook.disabled" in endpoint.types["watch"], "that is published")
        found = await user.webhook("hook")
        assert (found.state, found.problem, found.dead) == ("disabled", "status 500", 0)
        assert found.waiting == 1


async def test_name_of_an_own_address_is_refused_when_it_is_sent_to(herd: Broker, user: Herd) -> None:
    """Nothing is sent to a host with a private address, unless the setting permits it; the reason names the setting."""
    async with relay_of(herd, webhook_hosts=[]).running():
        await create(user, "hook", "https://localhost/events")
        tested = await user.test_webhook("hook")
        assert (tested.accepted, tested.status) == (False, None)
        assert "not a public address" in tested.reason
        assert "SANDHERD_WEBHOOK_HOSTS" in tested.reason
        with pytest.raises(HerdError, match=r"127\.0\.0\.1 is not a public address") as refused:
            await user.create_webhook("other", "https://127.1/events")
        assert "SANDHERD_WEBHOOK_HOSTS" in refused.value.line
        assert [one.name for one in (await user.webhooks()).webhooks] == ["hook"]


@pytest.mark.parametrize("url", ["http://example.com/x", "https://a:b@example.com/x", "ftp://example.com/x", "x"])
async def test_unsafe_urls_are_refused(herd: Broker, user: Herd, url: str) -> None:
    """A URL without TLS or with a credential is refused when the webhook is created."""
    async with relay_of(herd).running():
        await create(user, "known", "https://example.com/events")
        with pytest.raises(HerdError) as refused:
            await user.create_webhook("hook", url)
        assert refused.value.problem.code == "invalid_field"
        assert (refused.value.problem.field, bool(refused.value.problem.remedy)) == ("url", True) or url in {
            "x",
            "ftp://example.com/x",
        }


@pytest.mark.own_broker
async def test_secret_is_stored_encrypted_rotated_and_erased(
    herd: Broker, user: Herd, endpoint: Endpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No file, event or log has a secret; after a rotation both sign; after a deletion no stored key opens it."""
    thief = Thief(herd, tmp_path / "home")
    async with relay_of(herd).running(), workers(herd) as publish:
        first = await create(user, "hook", f"{endpoint.url}/hook")
        with pytest.raises(HerdError) as taken:
            await user.create_webhook("hook", f"{endpoint.url}/other")
        assert taken.value.problem.code == "conflict"
        second = (await user.rotate_webhook_secret("hook")).secret
        assert first != second
        await publish(1, sandboxes=(ONE,))
        await eventually(lambda: endpoint.of("hook", ONE) == [1], "it is delivered")
        assert [is_signed(one, *endpoint.last["hook"]) for one in (first, second)] == [True, True]
        third = (await user.rotate_webhook_secret("hook")).secret
        await eventually(partial(_is_signed_with, user, endpoint, third), "the newest one signs")
        signed = [is_signed(one, *endpoint.last["hook"]) for one in (first, second, third)]
        assert signed == [False, True, True]
        assert endpoint.types["hook"][-1] == "webhook.test"

        files = b"".join(contents_below(herd.home, tmp_path / "home").values())
        shown = "".join(capfd.readouterr())
        for secret in (first, second, third):
            assert secret.encode() not in files
            assert base64.b64decode(secret.removeprefix("whsec_")) not in files
            assert secret not in shown
            assert secret not in str(await user.webhooks())
        assert thief.finds(third)  # a holder of the herd's keys can open it
        await user.delete_webhook("hook")
        await eventually(lambda: not thief.finds(third), "it is erased")
        assert (await user.webhooks()).webhooks == []


async def _is_signed_with(user: Herd, endpoint: Endpoint, secret: str) -> bool:
    tested = await user.test_webhook("hook")
    return tested.accepted and is_signed(secret, *endpoint.last["hook"])


async def test_webhooks_belong_to_their_project(herd: Broker, user: Herd, endpoint: Endpoint) -> None:
    """A project neither sees nor changes another's webhook, and its own receives only its own events."""
    async with relay_of(herd).running(), workers(herd) as publish, Herd.connect(context_of(herd, "other")) as other:
        await create(user, "hook", f"{endpoint.url}/hook")
        await create(other, "theirs", f"{endpoint.url}/theirs")
        for act in (other.webhook, other.test_webhook, other.delete_webhook, other.rotate_webhook_secret):
            with pytest.raises(HerdError) as unknown:
                await act("hook")
            assert unknown.value.problem.code == "not_found"
        await publish(1)
        await eventually(lambda: len(endpoint.accepted["hook"]) == 2, "its own events come")
        assert [one.name for one in (await other.webhooks()).webhooks] == ["theirs"]
        assert not endpoint.ids["theirs"]


@pytest.mark.own_broker
async def test_broker_killed_meanwhile_loses_nothing(herd: Broker, user: Herd, endpoint: Endpoint) -> None:
    """After a kill of the broker, delivery continues after the last handled event."""
    async with relay_of(herd).running(), workers(herd) as publish:
        await create(user, "hook", f"{endpoint.url}/hook")
        await publish(1, sandboxes=(ONE,))
        await eventually(lambda: endpoint.of("hook", ONE) == [1], "it is delivered")
        await herd.kill()
        await herd.restart()
        async with asyncio.timeout(PATIENCE):
            await publish(2, 3, sandboxes=(ONE,))
        await eventually(lambda: endpoint.of("hook", ONE)[-1:] == [3], "it continues")
        numbers = endpoint.of("hook", ONE)
        assert [number for index, number in enumerate(numbers) if number not in numbers[:index]] == [1, 2, 3]


async def test_commands_do_the_same(herd: Broker, user: Herd, endpoint: Endpoint, capfd: Any) -> None:
    """Create, list, show, test, rotate, replay and delete work for a user; the secret is printed only once."""

    async def sandherd(*words: str) -> tuple[int, str]:
        context = context_of(herd)
        place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]
        status = await asyncio.to_thread(run_command, [*place, "webhooks", *words])
        return status, capfd.readouterr().out

    async with relay_of(herd).running():
        await create(user, "other", f"{endpoint.url}/other")
        status, out = await sandherd("create", "hook", f"{endpoint.url}/hook", "--type", "task", "--from", "all")
        assert (status, out.startswith("whsec_")) == (0, True)
        assert (await sandherd("test", "hook"))[0] == 0
        assert is_signed(out.strip(), *endpoint.last["hook"])
        endpoint.statuses["hook"] = [500]
        assert (await sandherd("test", "hook"))[0] == 1
        status, listed = await sandherd("list")
        assert (status, "hook" in listed, "whsec_" in listed) == (0, True, False)
        status, shown = await sandherd("show", "hook", "-o", "json")
        assert (status, json.loads(shown)["types"]) == (0, ["task"])
        assert (await sandherd("rotate", "hook"))[1].startswith("whsec_")
        assert "continues after" in (await sandherd("replay", "hook", "--dead-letters"))[1]
        assert (await sandherd("delete", "hook"))[0] == 0
        assert (await sandherd("show", "hook"))[0] != 0
