"""Which sandboxes are disconnected, and whose connections are closed, by the broker's counts."""

import math
from dataclasses import replace

from sandherd.bus.connection_list import BrokerConnection
from sandherd.bus.connection_users import ConnectionUser
from sandherd.contracts.principals import Principal
from spawner.sandboxes.flood_limits import ExceededLimit, FloodLimits, FloodMeter, FloodResult

LIMITS = FloodLimits(messages=1000, project_messages=3000, bytes=1024 * 1024, person_connections=5, client_messages=100)


def connection(
    number: int,
    messages: int = 0,
    *,
    sandbox: str = "sbx-a",
    project: str = "p1",
    principal: Principal = Principal.WORKER,
    key: str = "",
    size: int = 0,
    is_open: bool = True,
) -> BrokerConnection:
    user = ConnectionUser(key or f"U{sandbox}", principal, project, sandbox, None)
    return BrokerConnection("server", number, user, messages, size, 0, is_open, stopped=math.inf if is_open else 0.0)


def results_of(*looks: list[BrokerConnection]) -> list[FloodResult]:
    """The results for lists of connections that are a second apart."""
    meter = FloodMeter(LIMITS)
    return [meter.evaluate(look, float(second)) for second, look in enumerate(looks)]


def excesses(*looks: list[BrokerConnection]) -> list[tuple[str, ExceededLimit]]:
    return [(cut.key[1], cut.excess) for judgement in results_of(*looks) for cut in judgement.cut_offs]


def test_flood_is_found_at_the_next_sample() -> None:
    """More than the messages of 10 seconds within one sample are a flood; a sandbox within its rate is not cut off."""
    found = excesses(
        [connection(1), connection(2, sandbox="sbx-b")],
        [connection(1, 11_000), connection(2, 8_000, sandbox="sbx-b")],
    )
    assert found == [("sbx-a", ExceededLimit.MESSAGES)]


def test_rate_within_the_limit_is_no_excess() -> None:
    """A worker that publishes at the permitted rate for an hour, after its burst, is not cut off."""
    assert excesses([connection(1)], *([connection(1, 8000 + 800 * second)] for second in range(1, 3600))) == []


def test_late_check_finds_a_flood_and_no_other() -> None:
    """A spawner that was delayed compares what was sent meanwhile with what was permitted meanwhile."""
    meter, permitted = FloodMeter(LIMITS), 8000 + 800 * 30
    meter.evaluate([connection(1), connection(2, sandbox="sbx-b")], 0.0)
    late = meter.evaluate([connection(1, permitted), connection(2, 40_000, sandbox="sbx-b")], 30.0)
    assert [cut.key[1] for cut in late.cut_offs] == ["sbx-b"]
    assert [row.number for row in late.closed] == [2], "at once, before its credentials are revoked"
    clients = [connection(3, principal=Principal.CLIENT)], [connection(3, 3_500, principal=Principal.CLIENT)]
    meter.evaluate(clients[0], 31.0)
    assert meter.evaluate(clients[1], 61.0).closed == ()


def test_messages_before_the_first_sample_do_not_count() -> None:
    """A restarted spawner does not take a month's messages for a second's."""
    assert excesses([connection(1, 10_000_000)], [connection(1, 10_000_100)]) == []


def test_many_short_connections_count_like_one() -> None:
    """Connections that ended between two samples count, each with its messages and with its opening."""
    short = [connection(number, 1500, is_open=False) for number in range(8)]
    assert excesses([], short) == [("sbx-a", ExceededLimit.MESSAGES)]
    idle = [connection(number, 0, is_open=False) for number in range(250)]
    assert excesses([], idle) == [("sbx-a", ExceededLimit.MESSAGES)]


def test_credentials_of_one_sandbox_count_together() -> None:
    """A sandbox may have sixteen keys; its rate is one."""
    keys = [connection(number, 1500, key=f"U{number}") for number in range(8)]
    assert excesses([], keys) == [("sbx-a", ExceededLimit.MESSAGES)]
    assert excesses([], [connection(number, key=f"U{number}") for number in range(9)]) == [
        ("sbx-a", ExceededLimit.CONNECTIONS)
    ]


def test_bytes_count_like_messages() -> None:
    """More than the permitted bytes of a minute are a flood."""
    assert excesses([], [connection(1, 10, size=61 * 1024 * 1024)]) == [("sbx-a", ExceededLimit.BYTES)]


def test_project_over_its_rate_loses_its_busiest_sandbox() -> None:
    """Each sandbox is within its rate; the one that published most is disconnected, and no other project's."""
    many = [connection(number, 7000 + number, sandbox=f"sbx-{number}") for number in range(5)]
    assert excesses([], [*many, connection(9, 100, project="p2")]) == [("sbx-4", ExceededLimit.PROJECT_MESSAGES)]


def test_connections_per_credential_are_limited() -> None:
    """A worker's fourth connection is too many; three, and a joiner's beside them, are not."""
    three = [connection(number) for number in range(3)]
    joiner = connection(8, principal=Principal.JOINER, key="Ujoiner")
    assert excesses([], [*three, joiner]) == []
    assert excesses([], [*three, connection(4)]) == [("sbx-a", ExceededLimit.CONNECTIONS)]


def test_newest_connections_of_a_client_over_the_limit_are_closed() -> None:
    """A client's first connections stay and no sandbox is ended; services have no such limit."""
    person = [connection(number, sandbox="dana", principal=Principal.CLIENT) for number in range(8)]
    service = [connection(100 + number, sandbox="spawner", principal=Principal.SPAWNER) for number in range(9)]
    (judgement,) = results_of([*person, *service])
    assert judgement.cut_offs == ()
    assert [row.number for row in judgement.closed] == [5, 6, 7]


def client(
    number: int, messages: int, *, project: str = "p1", key: str = "Udana", is_open: bool = True
) -> BrokerConnection:
    return connection(
        number, messages, sandbox="dana", project=project, principal=Principal.CLIENT, key=key, is_open=is_open
    )


def test_credential_with_too_many_connections_repeatedly_is_revoked() -> None:
    """A credential is revoked if it has too many at three checks within a minute, not at fewer or rarer checks."""
    crowd = [connection(number, principal=Principal.CLIENT) for number in range(8)]
    few, larger = crowd[:5], [*crowd, connection(9, principal=Principal.CLIENT)]
    found = results_of(crowd, few, larger, few, crowd)
    assert [len(result.abuses) for result in found] == [0, 0, 0, 0, 1]
    assert [(abuse.user.public_key, abuse.connections) for abuse in found[-1].abuses] == [("Usbx-a", 9)]
    meter = FloodMeter(LIMITS)
    rare = [meter.evaluate(crowd, 31.0 * number) for number in range(20)]
    assert all(result.closed and not result.abuses for result in rare)
    assert not any(result.abuses for result in results_of(*[few] * 100))


def test_connections_between_two_checks_count_if_they_overlap() -> None:
    """Ended connections count if they were open at the same time, but not if they ended before the first check."""
    ended = [client(number, 0, is_open=False) for number in range(8)]
    together = [replace(row, started=row.number / 10, stopped=1.0) for row in ended]
    in_turn = [replace(row, started=row.number, stopped=row.number + 1) for row in ended]
    assert [len(result.abuses) for result in results_of([], together, together, together)] == [0, 0, 0, 1]
    assert not any(result.abuses for result in results_of([], *[in_turn] * 9))
    assert not any(result.abuses for result in results_of(together, together, together))


def closed(*looks: list[BrokerConnection]) -> list[list[int]]:
    """The connections closed at each check after the first."""
    return [[row.number for row in result.closed] for result in results_of(*looks)[1:]]


def test_connections_of_the_busiest_client_credential_are_closed() -> None:
    """All connections of that credential are closed, and none of another one in its or another project."""
    before = [client(1, 0), client(2, 0), client(3, 0, key="Uerin"), client(4, 0, project="p2", key="Ufay")]
    after = [client(1, 800), client(2, 300), client(3, 900, key="Uerin"), client(4, 900, project="p2", key="Ufay")]
    assert closed(before, after) == [[1, 2]]
    assert results_of(before, after)[1].cut_offs == ()
    assert results_of(before, after)[1].flooded == {"p1"}


def test_many_short_client_connections_count_like_one() -> None:
    """Ended connections count too; the open one is closed."""
    short = [client(number, 10, is_open=False) for number in range(1, 40)]
    assert closed([], [*short, client(50, 10)]) == [[50]]


def test_closed_client_starts_with_a_clean_count() -> None:
    """Earlier messages do not count; a new flood is closed again."""
    looks = [[client(1, 0)], [client(1, 50_000, is_open=False), client(2, 0)], [client(2, 90)], [client(2, 5000)]]
    assert closed(*looks) == [[2], [], [2]]


def test_publishing_clients_of_a_project_over_its_share_are_closed() -> None:
    """Clients that only subscribe, and other projects', stay."""
    meter = FloodMeter(LIMITS)
    meter.evaluate([client(1, 0), client(2, 0), client(3, 0, project="p2")], 0.0)
    found = meter.evaluate([client(1, 20), client(2, 0), client(3, 20, project="p2")], 1.0, {"p1"})
    assert [row.number for row in found.closed] == [1]
