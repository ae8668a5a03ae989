"""Which requests a service admits of one source, before it decodes or queues them."""

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.rate_limit import Rate, RateLimiter
from sandherd.service.request_intake import OVERLOAD_UNREAD, RequestIntake
from sandherd.telemetry.meters import Meters

ONCE = Rate(per_second=1e-6, burst=3)
"""Three messages, and no further one within a day."""


def peers_of(project: str, sandbox: str) -> bytes:
    return f"sandherd.v1.request.spawner.peers.{project}.{sandbox}".encode()


def test_refused_message_costs_its_source_nothing() -> None:
    """A source that was refused a million times is within its rate as soon as one that was not."""
    limiter = RateLimiter(Rate(per_second=10, burst=2))
    assert [limiter.admits("mad", 0.0) for _ in range(1_000)].count(True) == 2
    assert [limiter.admits("mad", 0.1) for _ in range(10)].count(True) == 1
    assert limiter.admits("other", 0.1)


@pytest.mark.parametrize(
    ("subject", "admitted"),
    [
        (peers_of("mad", "sbx-1"), False),
        (peers_of("mad", "sbx-2"), True),
        (peers_of("p1", "sbx-1"), True),
        (b"sandherd.v1.request.spawner.fetch.mad.sbx-1", True),
        (b"sandherd.v1.request.spawner.tasks.mad", True),
    ],
)
def test_source_is_a_kind_of_one_sandbox(subject: bytes, admitted: bool) -> None:
    """A sandbox above its rate is refused this kind; other kinds, sandboxes and projects are not."""
    intake = RequestIntake(Meters(CollectorRegistry()), ONCE, Rate(1e-6, 1_000))
    assert [intake.admits(peers_of("mad", "sbx-1"), b"", 0) for _ in range(100)].count(True) == 3
    assert intake.admits(subject, b"", 0) is admitted


def test_sandboxes_of_a_project_count_together() -> None:
    """Many sandboxes of one project are refused together, and those of a project whose name begins alike are not."""
    intake = RequestIntake(Meters(CollectorRegistry()), ONCE, Rate(1e-6, 10))
    assert [intake.admits(peers_of("mad", f"sbx-{number}"), b"", 0) for number in range(100)].count(True) == 10
    assert intake.admits(peers_of("mad2", "sbx-1"), b"", 0)


def test_service_that_is_behind_queues_little_of_each_source() -> None:
    """While many requests wait, the next ones of the source that sends most are refused, and those of others queued."""
    intake = RequestIntake(Meters(CollectorRegistry()))
    behind = OVERLOAD_UNREAD + 1
    assert sum(intake.admits(peers_of("mad", "sbx-1"), b"", behind) for _ in range(500)) < 500
    assert intake.admits(peers_of("p1", "sbx-1"), b"", behind)
    assert intake.admits(peers_of("mad", "sbx-1"), b"", OVERLOAD_UNREAD)
