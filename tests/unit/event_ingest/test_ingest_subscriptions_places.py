"""Names and filters of subscriptions: no project's can be taken for another's, whatever both are called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.subscription_consumers import Terms, chosen_types, creation, filters, free_place, places_for
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import SAFE_NAME_PATTERN
from sandherd.contracts.requests import Subscribe
from sandherd.contracts.subjects import covers, event_subject
from sandherd.contracts.subscriptions import PLACES, consumer_names

NAMES = st.from_regex(SAFE_NAME_PATTERN.strip("^$"), fullmatch=True)
DOMAINS = sorted({name.partition(".")[0] for name in EVENTS})
TYPES = st.lists(st.sampled_from([*EVENTS, *DOMAINS]), max_size=12)
TERMS = Terms(most=8, ack_wait=30, idle=60)


@given(NAMES, st.from_regex(r"(-[0-9]{1,2}){0,2}", fullmatch=True))
def test_no_two_projects_share_a_consumer(project: str, ending: str) -> None:
    """Also not those whose names go on where the other's ends, with what looks like a place."""
    other = (project + ending)[:63]
    shared = {*consumer_names(project)} & {*consumer_names(other)}
    assert bool(shared) == (other == project)


@given(NAMES, TYPES)
def test_filters_are_what_was_chosen_and_never_overlap(project: str, given_types: list[str]) -> None:
    """Each event of the project is given once if it is chosen, and not at all if it is not; no other project's is."""
    found = filters(project, chosen_types(given_types))
    for name in EVENTS:
        wanted = not given_types or name in given_types or name.partition(".")[0] in given_types
        own, foreign = event_subject(project, "sbx-1", name), event_subject(f"{project}x"[-63:], "sbx-1", name)
        assert sum(covers(pattern, own) for pattern in found) == int(wanted)
        assert own == foreign or not any(covers(pattern, foreign) for pattern in found)


@given(NAMES)
def test_a_name_has_an_order_of_all_places(name: str) -> None:
    """The same for every replica, with each place once; a free one is found as long as there is one."""
    assert sorted(places_for(name)) == [*PLACES]
    assert places_for(name) == places_for(name)
    roomy = Terms(most=99, ack_wait=30, idle=60)
    assert free_place(name, [*PLACES][1:], roomy) == PLACES[0]
    with pytest.raises(ContractError) as error:
        free_place(name, PLACES, roomy)
    assert error.value.problem.code is Code.REFUSED


def test_what_the_broker_is_asked_for_can_not_change_what_is_there() -> None:
    """It is asked to create, and so refuses a consumer that exists with another name or other types."""
    asked = creation(Subscribe(name="copy", types=["task"], start=7), "p1", 3, TERMS)
    config = asked["config"]
    assert (asked["action"], config["durable_name"], config["opt_start_seq"]) == ("create", "sub-p1-3", 7)
    assert config["filter_subjects"] == ["sandherd.v1.event.p1.*.task.*"]
    assert config["inactive_threshold"] == 60 * 10**9


@pytest.mark.parametrize(
    ("pattern", "subject", "is_for"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.c.c", False),
        (">", "a", True),
    ],
)
def test_what_a_subscription_is_for(pattern: str, subject: str, is_for: bool) -> None:
    """`*` is one token, `>` one or more at the end, as NATS has it."""
    assert covers(pattern, subject) is is_for
