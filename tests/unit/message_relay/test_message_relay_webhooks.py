"""What a webhook sends next, when it sends again, and what is stored of it."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from message_relay.webhooks.queue import MAX_WAITING, DeliveryQueue, QueuedEvent
from message_relay.webhooks.receiver import check_new_url
from message_relay.webhooks.retry_rules import RETRIES, due_after, is_over, shown
from message_relay.webhooks.webhook_record import WebhookRecord, resumed, rotated, signing
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import WebhookDeadLetter
from spawner.named_secrets.webhook_secrets import StoredSecrets, next_secrets, secrets_of_number

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LIFE = "0" * 32


def record(**fields: object) -> WebhookRecord:
    given = {"project": "p1", "name": "hook", "life": LIFE, "url": "https://example.com", **fields}
    return WebhookRecord(created_at=NOW, secret_at=NOW, **given)  # type: ignore[arg-type]  # checked by pydantic


def item(sequence: int, entity: str = "sbx-1", size: int = 1) -> QueuedEvent:
    return QueuedEvent(sequence, entity, "agent.message", f"id-{sequence}", b"x" * size, NOW)


def test_entities_wait_for_themselves_only() -> None:
    """The next event of an entity is sent when the one before it is handled; those of others at once."""
    queue = DeliveryQueue(record())
    for one in (item(1), item(2), item(3, "sbx-2")):
        queue.read(one.sequence, one)
    first, other = queue.next(NOW), queue.next(NOW)
    assert first
    assert other
    assert (first.sequence, other.sequence, queue.next(NOW)) == (1, 3, None)
    assert not queue.fail(first, NOW, retry_after=None, jitter=0)
    assert queue.next(NOW) is None
    assert queue.seconds_to_next(NOW) == RETRIES[0]
    later = NOW + timedelta(seconds=RETRIES[0])
    assert queue.next(later) == first
    queue.finish(first)
    assert queue.next(later) == item(2)


def test_progress_names_what_is_not_handled() -> None:
    """What waits is stored with the position, so that a restart sends it and nothing that was handled."""
    queue = DeliveryQueue(record(position=4))
    queue.read(5, item(5))
    queue.read(6, None)
    queue.read(7, item(7, "sbx-2"))
    head = queue.next(NOW)
    assert head
    queue.fail(head, NOW, retry_after=None, jitter=0)
    found = record().model_copy(update=queue.progress())
    assert (found.position, found.waiting, [one.sequence for one in found.retries]) == (7, (5, 7), [5])
    again = DeliveryQueue(found)
    again.add_waiting(item(5))
    again.add_waiting(item(7, "sbx-2"))
    assert again.next(NOW) == item(7, "sbx-2")
    assert again.read_to == 7


def test_queue_is_bounded() -> None:
    """No more is read than a number of events, or of bytes."""
    queue = DeliveryQueue(record())
    for sequence in range(1, MAX_WAITING + 1):
        assert not queue.is_full
        queue.read(sequence, item(sequence))
    assert queue.is_full
    large = DeliveryQueue(record())
    large.read(1, item(1, size=8 * 1024 * 1024))
    assert large.is_full


def test_event_is_given_up_after_the_last_delay() -> None:
    """The delays are those of Standard Webhooks, longer by the receiver's wish, and end."""
    for failures, delay in enumerate(RETRIES, 1):
        due = due_after(failures, NOW, retry_after=None, jitter=0, retries=RETRIES)
        assert due == NOW + timedelta(seconds=delay)
    assert due_after(len(RETRIES) + 1, NOW, retry_after=None, jitter=0, retries=RETRIES) is None
    assert due_after(1, NOW, retry_after=60, jitter=1, retries=RETRIES) == NOW + timedelta(seconds=60)
    assert sum(RETRIES) * 1.1 < timedelta(days=5).total_seconds()


def test_webhook_that_fails_for_long_is_over() -> None:
    """The time is counted from the first failure since the last acceptance."""
    assert not is_over(NOW, NOW + timedelta(seconds=9), 10)
    assert is_over(NOW, NOW + timedelta(seconds=10), 10)


def test_reasons_have_no_control_characters() -> None:
    """Text of a receiver can neither control a terminal nor contain NUL."""
    assert shown("a\x1b[2J\0" + "b" * 500) == "a?[2J?" + "b" * 194


@pytest.mark.parametrize(
    ("types", "entities", "expected"),
    [((), (), True), (("agent",), (), True), (("agent.message",), ("sbx-1",), True), (("task",), (), False),
     ((), ("sbx-2",), False)],
)  # fmt: skip
def test_filter_is_that_of_subscriptions(types: tuple[str, ...], entities: tuple[str, ...], expected: bool) -> None:
    """Types or domains, and entities."""
    assert record(types=types, entities=entities).matches("sbx-1", "agent.message") is expected


def test_replay_keeps_or_sets_the_position() -> None:
    """A disabled webhook continues where it stopped, or from elsewhere; dead letters become waiting ones."""
    dead = WebhookDeadLetter(sequence=3, type="agent.message", subject="sbx-1", reason="status 500", at=NOW)
    old = record(
        position=9, waiting=(8,), dead=(dead,), disabled_at=NOW, failing_since=NOW, problem="x", published=False
    )
    stored = resumed(old, position=None, dead_letters=False)
    assert (stored.position, stored.waiting, stored.dead, stored.disabled_at, stored.edit) == (
        9,
        (8,),
        (dead,),
        None,
        2,
    )
    again = resumed(old, position=None, dead_letters=True)
    assert (again.waiting, again.dead) == ((3, 8), ())
    assert resumed(old, position=2, dead_letters=False).waiting == ()
    assert resumed(old, position=2, dead_letters=True).waiting == ()  # it comes by the position


def test_both_secrets_sign_for_a_while() -> None:
    """After a rotation the one before signs, too, until its time."""
    until = NOW + timedelta(hours=1)
    found = rotated(record(), 2, NOW, until)
    assert signing(found, ("new", "old"), NOW) == ("new", "old")
    assert signing(found, ("new", "old"), until) == ("new",)
    assert signing(record(), ("new", ""), NOW) == ("new",)


def test_repeated_rotation_makes_one_secret() -> None:
    """A request whose reply was lost finds what it created; another life of the name shares nothing with it."""
    first = next_secrets(None, LIFE, 1)
    second = next_secrets(first, LIFE, 2)
    assert (second.previous, secrets_of_number(second, LIFE, 2)) == (first.secret, second)
    assert secrets_of_number(second, LIFE, 1) == StoredSecrets(life=LIFE, number=1, secret=first.secret)
    assert secrets_of_number(second, "1" * 32, 2) is None
    assert next_secrets(second, "1" * 32, 1).previous == ""


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
        ("169.254.169.254", "169.254.169.254"),
        ("10.0.0.1", "10.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
    ],
)
def test_address_that_is_not_public_is_refused_at_creation(host: str, address: str) -> None:
    """However it is written; the error names the setting that permits the host."""
    with pytest.raises(ContractError, match=f"{re.escape(address)} is not a public address") as refused:
        check_new_url(f"https://{host}:9999/x", [])
    assert "SANDHERD_WEBHOOK_HOSTS" in (refused.value.problem.remedy or "")
    check_new_url(f"https://{host}:9999/x", [host.strip("[]")])


@pytest.mark.parametrize("url", ["https://localhost/x", "https://example.com/x", "https://8.8.8.8/x"])
def test_names_and_public_addresses_are_accepted_at_creation(url: str) -> None:
    """What a name resolves to is checked before each request."""
    check_new_url(url, [])
