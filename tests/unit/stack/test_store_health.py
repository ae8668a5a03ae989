"""When a nats-server that does not store is restarted."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sandherd.stack.store_health import (
    RESTART_BACKOFF,
    UNACKNOWLEDGED_SECONDS,
    StoreAction,
    StoreCheck,
    StoreState,
    next_state,
)

FAILED = "JetStream stream 'A > EVENTS' write error: write 1.blk: no space left on device"
DISABLED = "JetStream not enabled (10076)"
WELL = StoreCheck(health="ok", stored=True, short=False)


def play(looks: list[tuple[float, StoreCheck]]) -> list[StoreAction]:
    state, actions = StoreState(), []
    for now, look in looks:
        state, action = next_state(state, look, now)
        actions.append(action)
    return actions


def test_full_disk_delays_the_restart() -> None:
    """There is no restart loop while nothing is free, and a restart at the first look afterwards."""
    full = StoreCheck(health=FAILED, stored=False, short=True)
    free = StoreCheck(health=FAILED, stored=False, short=False)
    looks = [(float(second), full) for second in range(0, 600, 2)]
    assert play([(0.0, WELL), *looks, (600.0, free)]) == [
        StoreAction.NOTHING,
        *[StoreAction.WAIT] * 300,
        StoreAction.RESTART,
    ]


def test_failed_stream_is_found_with_a_stored_probe() -> None:
    """The probe has a stream of its own: another's failure is in the health only."""
    assert play([(0.0, StoreCheck(health=FAILED, stored=True, short=False))]) == [StoreAction.RESTART]


def test_server_with_a_disabled_store_is_restarted_in_a_cluster() -> None:
    """A server of a cluster disables its store for good."""
    assert play([(0.0, StoreCheck(health=DISABLED, stored=True, short=False, alone=False))]) == [StoreAction.RESTART]


def test_exhausted_descriptors_cause_a_restart() -> None:
    """The server reports `ok` then; its writes are not acknowledged."""
    gone = StoreCheck(health="ok", stored=False, short=True)
    back = StoreCheck(health="ok", stored=False, short=False)
    assert play([(0.0, gone), (2.0, gone), (4.0, back)]) == [StoreAction.WAIT, StoreAction.WAIT, StoreAction.RESTART]


def test_one_slow_write_causes_no_restart() -> None:
    """A busy machine writes slowly; only many seconds without an acknowledgement cause a restart."""
    slow = StoreCheck(health="ok", stored=False, short=False)
    assert play([(0.0, slow), (3.0, slow), (6.0, WELL)]) == [StoreAction.WAIT, StoreAction.WAIT, StoreAction.NOTHING]
    assert play([(0.0, slow), (UNACKNOWLEDGED_SECONDS, slow)])[-1] is StoreAction.RESTART


def test_write_without_a_majority_causes_no_restart() -> None:
    """A healthy server of several is left alone however long a majority is missing."""
    waits = StoreCheck(health="ok", stored=False, short=False, alone=False)
    assert StoreAction.RESTART not in play([(float(now), waits) for now in range(0, 300, 2)])


def test_unresponsive_server_is_left_to_its_supervisor() -> None:
    """The server starts, or was stopped."""
    silent = StoreCheck(health=None, stored=False, short=False)
    assert set(play([(float(now), silent) for now in range(0, 300, 2)])) == {StoreAction.NOTHING}


@given(
    st.lists(
        st.builds(
            StoreCheck,
            health=st.sampled_from(["ok", FAILED, DISABLED, None]),
            stored=st.booleans(),
            short=st.booleans(),
            alone=st.booleans(),
        ),
        min_size=1,
        max_size=200,
    )
)
def test_restarts_are_rare_under_any_observation(looks: list[StoreCheck]) -> None:
    """No restart happens during a shortage or without a reply, and the intervals grow if they do not help."""
    actions = play([(2.0 * place, look) for place, look in enumerate(looks)])
    at = [2.0 * place for place, action in enumerate(actions) if action is StoreAction.RESTART]
    for place, action in enumerate(actions):
        if action is StoreAction.RESTART:
            assert looks[place].health is not None
            assert not looks[place].short
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(at))
    assert len(at) <= 3 + 2.0 * len(looks) / 5
    assert RESTART_BACKOFF.cap <= 20, "all goes on within 30 s"


def test_server_that_accepts_no_connection_is_restarted_in_a_cluster() -> None:
    """The server's health may be unknown, as it can't be requested; one slow reply is no reason."""
    for health, stored in (("ok", True), (None, False)):
        silent = StoreCheck(health=health, stored=stored, short=False, alone=False, silent=True)
        looks = [(0.0, WELL), (2.0, silent), (2.0 + UNACKNOWLEDGED_SECONDS, silent)]
        assert play(looks) == [StoreAction.NOTHING, StoreAction.WAIT, StoreAction.RESTART]
