"""When a nats-server that does not store is started again."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sandherd.stack.store_health import LONGEST_REST, UNACKNOWLEDGED_SECONDS, Action, Look, StoreState, next_state

FAILED = "JetStream stream 'A > EVENTS' write error: write 1.blk: no space left on device"
DISABLED = "JetStream not enabled (10076)"
WELL = Look(health="ok", stored=True, short=False)


def play(looks: list[tuple[float, Look]]) -> list[Action]:
    state, actions = StoreState(), []
    for now, look in looks:
        state, action = next_state(state, look, now)
        actions.append(action)
    return actions


def test_it_waits_while_the_disk_is_full_and_restarts_as_soon_as_it_is_not() -> None:
    """Never in a loop while nothing is free, and at the first look afterwards."""
    full = Look(health=FAILED, stored=False, short=True)
    free = Look(health=FAILED, stored=False, short=False)
    looks = [(float(second), full) for second in range(0, 600, 2)]
    assert play([(0.0, WELL), *looks, (600.0, free)]) == [Action.NOTHING, *[Action.WAIT] * 300, Action.RESTART]


def test_a_stream_that_failed_is_found_although_the_probe_is_stored() -> None:
    """The probe has a stream of its own: another's failure is in the health only."""
    assert play([(0.0, Look(health=FAILED, stored=True, short=False))]) == [Action.RESTART]


def test_a_server_that_gave_up_its_store_is_restarted_also_among_others() -> None:
    """A server of a cluster disables its store for good."""
    assert play([(0.0, Look(health=DISABLED, stored=True, short=False, alone=False))]) == [Action.RESTART]


def test_descriptors_that_were_exhausted_are_enough_of_a_reason() -> None:
    """The server says `ok` then; its writes are not acknowledged."""
    gone = Look(health="ok", stored=False, short=True)
    back = Look(health="ok", stored=False, short=False)
    assert play([(0.0, gone), (2.0, gone), (4.0, back)]) == [Action.WAIT, Action.WAIT, Action.RESTART]


def test_one_slow_write_is_no_reason() -> None:
    """A machine under load; only a silence of many seconds is."""
    slow = Look(health="ok", stored=False, short=False)
    assert play([(0.0, slow), (3.0, slow), (6.0, WELL)]) == [Action.WAIT, Action.WAIT, Action.NOTHING]
    assert play([(0.0, slow), (UNACKNOWLEDGED_SECONDS, slow)])[-1] is Action.RESTART


def test_a_write_that_waits_for_another_server_is_no_reason() -> None:
    """Of several, one that is well is left alone however long a majority is missing."""
    waits = Look(health="ok", stored=False, short=False, alone=False)
    assert Action.RESTART not in play([(float(now), waits) for now in range(0, 300, 2)])


def test_a_server_that_does_not_answer_is_left_to_who_holds_its_process() -> None:
    """It starts, or was stopped."""
    silent = Look(health=None, stored=False, short=False)
    assert set(play([(float(now), silent) for now in range(0, 300, 2)])) == {Action.NOTHING}


@given(
    st.lists(
        st.builds(
            Look,
            health=st.sampled_from(["ok", FAILED, DISABLED, None]),
            stored=st.booleans(),
            short=st.booleans(),
            alone=st.booleans(),
        ),
        min_size=1,
        max_size=200,
    )
)
def test_restarts_are_rare_whatever_is_seen(looks: list[Look]) -> None:
    """Never while something is short, never without an answer, and ever more apart if they do not help."""
    actions = play([(2.0 * place, look) for place, look in enumerate(looks)])
    at = [2.0 * place for place, action in enumerate(actions) if action is Action.RESTART]
    for place, action in enumerate(actions):
        if action is Action.RESTART:
            assert looks[place].health is not None
            assert not looks[place].short
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(at))
    assert len(at) <= 3 + 2.0 * len(looks) / 5
    assert LONGEST_REST <= 20, "all goes on within 30 s"


def test_a_server_that_answers_no_new_connection_is_restarted_also_among_others() -> None:
    """Its health may be unknown, as nobody can ask it; one slow answer is no reason."""
    for health, stored in (("ok", True), (None, False)):
        silent = Look(health=health, stored=stored, short=False, alone=False, silent=True)
        looks = [(0.0, WELL), (2.0, silent), (2.0 + UNACKNOWLEDGED_SECONDS, silent)]
        assert play(looks) == [Action.NOTHING, Action.WAIT, Action.RESTART]
