"""Which sandboxes are cut off, and whose connections are closed, by what the broker has counted."""

from sandherd.bus.connections import Connection, User
from sandherd.contracts.principals import Principal
from spawner.sandboxes.flood_limits import Excess, FloodLimits, FloodMeter, Judgement

LIMITS = FloodLimits(messages=1000, project_messages=3000, bytes=1024 * 1024, person_connections=5)


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
) -> Connection:
    user = User(key or f"U{sandbox}", principal, project, sandbox, None)
    return Connection("server", number, user, messages, size, 0, is_open)


def judged(*looks: list[Connection]) -> list[Judgement]:
    """What is found in lists of connections that are a second apart."""
    meter = FloodMeter(LIMITS)
    return [meter.judge(look, float(second)) for second, look in enumerate(looks)]


def excesses(*looks: list[Connection]) -> list[tuple[str, Excess]]:
    return [(cut.key[1], cut.excess) for judgement in judged(*looks) for cut in judgement.cut_offs]


def test_a_flood_is_found_at_the_next_look_and_its_neighbour_is_not() -> None:
    """More than 10 seconds' worth within one look."""
    found = excesses(
        [connection(1), connection(2, sandbox="sbx-b")],
        [connection(1, 11_000), connection(2, 8_000, sandbox="sbx-b")],
    )
    assert found == [("sbx-a", Excess.MESSAGES)]


def test_what_is_just_within_the_rate_is_none() -> None:
    """A worker that publishes at its own pace for an hour, after its burst."""
    assert excesses([connection(1)], *([connection(1, 8000 + 800 * second)] for second in range(1, 3600))) == []


def test_what_was_sent_before_the_first_look_counts_for_nobody() -> None:
    """A spawner that is started again does not take a month for a second."""
    assert excesses([connection(1, 10_000_000)], [connection(1, 10_000_100)]) == []


def test_many_short_connections_count_like_one() -> None:
    """Connections that ended between two looks count, each with what it sent and with its opening."""
    short = [connection(number, 1500, is_open=False) for number in range(8)]
    assert excesses([], short) == [("sbx-a", Excess.MESSAGES)]
    idle = [connection(number, 0, is_open=False) for number in range(250)]
    assert excesses([], idle) == [("sbx-a", Excess.MESSAGES)]


def test_several_credentials_of_one_sandbox_count_together() -> None:
    """A sandbox may have sixteen keys; its rate is one."""
    keys = [connection(number, 1500, key=f"U{number}") for number in range(8)]
    assert excesses([], keys) == [("sbx-a", Excess.MESSAGES)]
    assert excesses([], [connection(number, key=f"U{number}") for number in range(9)]) == [
        ("sbx-a", Excess.CONNECTIONS)
    ]


def test_bytes_count_as_messages_do() -> None:
    """More than a minute's worth of bytes."""
    assert excesses([], [connection(1, 10, size=61 * 1024 * 1024)]) == [("sbx-a", Excess.BYTES)]


def test_a_project_of_many_sandboxes_that_are_each_within_their_rate() -> None:
    """The one that published most is cut off; another project is not touched."""
    many = [connection(number, 7000 + number, sandbox=f"sbx-{number}") for number in range(5)]
    assert excesses([], [*many, connection(9, 100, project="p2")]) == [("sbx-4", Excess.PROJECT_MESSAGES)]


def test_connections_of_one_credential_have_a_limit() -> None:
    """A worker's fourth connection is too many; three, and a joiner's beside them, are not."""
    three = [connection(number) for number in range(3)]
    joiner = connection(8, principal=Principal.JOINER, key="Ujoiner")
    assert excesses([], [*three, joiner]) == []
    assert excesses([], [*three, connection(4)]) == [("sbx-a", Excess.CONNECTIONS)]


def test_the_newest_connections_of_a_person_are_closed_and_nobody_is_ended() -> None:
    """A person's program that opens too many loses those, and keeps its first ones; services have no such limit."""
    person = [connection(number, sandbox="dana", principal=Principal.CLIENT) for number in range(8)]
    service = [connection(100 + number, sandbox="spawner", principal=Principal.SPAWNER) for number in range(9)]
    (judgement,) = judged([*person, *service])
    assert judgement.cut_offs == ()
    assert [row.number for row in judgement.closed] == [5, 6, 7]
