"""The names and filters of subscriptions never belong to two projects, whatever the names of the projects are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.subscription_consumers import SubscriptionTerms, creation, filters, free_place, places_for
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.event_types import chosen_types
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import SAFE_NAME_PATTERN
from sandherd.contracts.requests import Subscribe
from sandherd.contracts.subjects import covers, event_subject
from sandherd.contracts.subscriptions import PLACES, consumer_names

NAMES = st.from_regex(SAFE_NAME_PATTERN.strip("^$"), fullmatch=True)
DOMAINS = sorted({name.partition(".")[0] for name in EVENTS})
TYPES = st.lists(st.sampled_from([*EVENTS, *DOMAINS]), max_size=12)
TERMS = SubscriptionTerms(limit=8, ack_wait=30, idle=60)


@given(NAMES, st.from_regex(r"(-[0-9]{1,2}){0,2}", fullmatch=True))
def test_no_two_projects_share_a_consumer(project: str, ending: str) -> None:
    """Not even if the name of one project is that of the other, continued by a text that looks like a place."""
    other = (project + ending)[:63]
    shared = {*consumer_names(project)} & {*consumer_names(other)}
    assert bool(shared) == (other == project)


@given(NAMES, TYPES)
def test_filters_cover_the_chosen_types_without_overlap(project: str, given_types: list[str]) -> None:
    """Each selected event of the project matches exactly one filter; events of other types or projects match none."""
    found = filters(project, chosen_types(given_types))
    for name in EVENTS:
        wanted = not given_types or name in given_types or name.partition(".")[0] in given_types
        own, foreign = event_subject(project, "sbx-1", name), event_subject(f"{project}x"[-63:], "sbx-1", name)
        assert sum(covers(pattern, own) for pattern in found) == int(wanted)
        assert own == foreign or not any(covers(pattern, foreign) for pattern in found)


@given(NAMES)
def test_a_name_has_an_order_of_all_places(name: str) -> None:
    """All replicas have the same order, with each place once. A free place is found as long as there is one."""
    assert sorted(places_for(name)) == [*PLACES]
    assert places_for(name) == places_for(name)
    roomy = SubscriptionTerms(limit=99, ack_wait=30, idle=60)
    assert free_place(name, [*PLACES][1:], roomy) == PLACES[0]
    with pytest.raises(ContractError) as error:
        free_place(name, PLACES, roomy)
    assert error.value.problem.code is Code.REFUSED


def test_creation_cannot_change_an_existing_consumer() -> None:
    """The action is `create`: the broker refuses a consumer that exists with another configuration."""
    requested = creation(Subscribe(name="copy", types=["task"], start=7), "p1", 3, TERMS)
    config = requested["config"]
    assert (requested["action"], config["durable_name"], config["opt_start_seq"]) == ("create", "sub-p1-3", 7)
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
def test_pattern_covers_subject_as_in_nats(pattern: str, subject: str, is_for: bool) -> None:
    """`*` matches one token, `>` one or more at the end."""
    assert covers(pattern, subject) is is_for
