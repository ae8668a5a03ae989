"""Names of branches: GitFlow prefixes, readable slugs, valid for git, and distinct."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from spawner.repositories.branch_names import (
    MAX_LENGTH,
    alternative_name,
    branch_name,
    collides,
    prefix_of,
    rules_of,
)

TASK = "task-01m8e9m87ae11bafpf3nh4anpn"
ANY_TEXT = st.text(max_size=200)
DEFAULT = rules_of(load({}, {}).settings.branch_prefixes)


@pytest.mark.parametrize(
    ("title", "priority", "prefix"),
    [
        ("Calculate binomial coefficients", "normal", "feature"),
        ("Fix the crash in the parser", "normal", "bugfix"),
        ("Fix the crash in the parser", "critical", "hotfix"),
        ("URGENT: login fails", "normal", "hotfix"),
        ("Prepare release 2.1", "normal", "release"),
        ("Bump pydantic to 2.14", "low", "chore"),
        ("Prefix every log line", "critical", "feature"),
        ("", "normal", "feature"),
    ],
)
def test_prefix_is_that_of_the_first_rule_that_matches(title: str, priority: str, prefix: str) -> None:
    """Whole words count; each of the five prefixes can be reached."""
    assert prefix_of(title, priority, DEFAULT) == prefix


def test_rules_can_be_replaced() -> None:
    """Rules are tried in order. The prefix without words is for any other title. A prefix may have folders."""
    text = "chore=fix,agents/bugfix=fix|crash,agents/change"
    rules = rules_of(load({}, {"SANDHERD_BRANCH_PREFIXES": text}).settings.branch_prefixes)
    titles = ("fix it", "a crash", "else")
    assert [prefix_of(title, "critical", rules) for title in titles] == ["chore", "agents/bugfix", "agents/change"]
    assert prefix_of("else", "normal", rules_of(["chore=fix"])) == "feature"
    assert branch_name("Search", prefix="agents/change", task=TASK) == "agents/change/search"
    for taken in ("agents", "agents/change"):
        assert branch_name("Search", prefix="agents/change", task=TASK, taken=[taken]) == "agents-change-search"


@pytest.mark.parametrize(
    "text",
    [
        "Fix=fix",
        "a..b=fix",
        "-a=fix",
        "a.lock=fix",
        "a b=fix",
        "a/=fix",
        "/a=fix",
        "fix=a-b",
        "fix=",
        "feature,fix=a",
        "a=b,a=c",
    ],
)
def test_rule_without_effect_or_valid_name_is_refused(text: str) -> None:
    """The spawner refuses such a rule when it starts, not only when a branch is created."""
    with pytest.raises(ContractError, match="branch_prefixes"):
        load({}, {"SANDHERD_BRANCH_PREFIXES": text})


@pytest.mark.parametrize(
    ("title", "ticket", "name"),
    [
        ("Calculate binomial coefficients", None, "feature/calculate-binomial-coefficients"),
        ("Don't  crash: on `null`!", None, "feature/dont-crash-on-null"),
        ("Übergrößen über Straße", None, "feature/ubergroen-uber-strae"),
        ("Search", "SHOP-123", "feature/shop-123-search"),
        ("日本語", None, f"feature/{TASK}"),
        ("日本語", "42", "feature/42"),
        ("-rf / ../../etc HEAD@{1}.lock", None, "feature/rf-etc-head-1-lock"),
    ],
)
def test_slug_is_readable(title: str, ticket: str | None, name: str) -> None:
    """It has words in lower case, the ticket first. A title without a usable word is replaced by the task's name."""
    assert branch_name(title, prefix="feature", task=TASK, ticket=ticket) == name


def test_long_title_ends_with_a_whole_word() -> None:
    """A name has at most 60 characters. A word is cut off only if more than half of them would be unused without it."""
    name = branch_name("word " * 40, prefix="bugfix", task=TASK)
    assert name == f"bugfix/{'word-' * 9}word"[: len(name)]
    assert MAX_LENGTH - 5 < len(name) <= MAX_LENGTH
    assert len(branch_name("x" * 300, prefix="bugfix", task=TASK)) == MAX_LENGTH
    assert branch_name(f"Add {'x' * 300}", prefix="feature", task=TASK) == f"feature/add-{'x' * 48}"
    assert branch_name(f"Add {'x' * 30} {'y' * 30}", prefix="feature", task=TASK) == f"feature/add-{'x' * 30}"


@pytest.mark.parametrize("taken", ["feature/search", "Feature/Search", "feature/search/old", "feature/search/old/er"])
def test_used_name_is_distinguished_by_the_task(taken: str) -> None:
    """A name is also used if case differs, or if it is a folder of another. The same task gets the same name again."""
    first, again = (branch_name("Search", prefix="feature", task=TASK, taken=[taken]) for _ in range(2))
    other = branch_name("Search", prefix="feature", task="task-other", taken=[taken])
    assert first == again
    assert len({first, other, "feature/search"}) == 3
    assert first.startswith("feature/search-")


def test_branch_with_the_name_of_the_prefix_is_no_obstacle() -> None:
    """`feature/search` can't exist beside a branch `feature`."""
    assert branch_name("Search", prefix="feature", task=TASK, taken=["feature"]) == "feature-search"


@pytest.mark.parametrize(
    ("taken", "begins"),
    [("feature/search", "feature/search-"), ("feature", "feature-search-"), ("Feature/search/x", "feature/search-")],
)
def test_another_name_for_a_push_collides_with_no_branch(taken: str, begins: str) -> None:
    """That is so even if the repository got a branch with the name of the prefix after the branch was named."""
    found = alternative_name("feature/search", TASK, [taken])
    assert found.startswith(begins)
    assert not collides(found, {taken.casefold()})


@settings(max_examples=150, deadline=None)
@given(
    title=ANY_TEXT,
    ticket=st.none() | ANY_TEXT,
    prefix=st.sampled_from([*DEFAULT, "feature", "a-team/agents/feature_1"]),
    taken=st.lists(ANY_TEXT),
)
def test_every_name_is_valid_for_git(title: str, ticket: str | None, prefix: str, taken: list[str]) -> None:
    """For any title, ticket and other branches, the name is short, valid and distinct."""
    name = branch_name(title, prefix=prefix, task=TASK, ticket=ticket, taken=taken)
    assert len(name) <= MAX_LENGTH
    assert not collides(name, {one.casefold() for one in taken})
    subprocess.run(["git", "check-ref-format", "--branch", name], check=True, stdout=subprocess.DEVNULL)
