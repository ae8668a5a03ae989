"""Decisions of GitHub about a pull request: whether it is mergeable, its state, and the text of a refused merge."""

from collections.abc import Iterator
from typing import Final

from tests.doubles.forges.forge_state import BranchRules, Pull, Repository
from tests.doubles.forges.merges import Method
from tests.doubles.forges.pull_states import latest, mergeable, outcome

_NAMES: Final[dict[Method, str]] = {"merge": "Merge commits", "squash": "Squash merges", "rebase": "Rebase merges"}


def state(repository: Repository, pull: Pull) -> str:
    """The `mergeable_state` of an open pull request whose mergeability is known."""
    if not mergeable(repository, pull):
        return "dirty"
    if pull.draft:
        return "draft"
    if any(_violations(repository, pull)):
        return "blocked"
    strict = any(one.up_to_date for one in repository.rules_of(pull.base))
    if strict and not repository.git.contains(pull.head_sha, pull.base_sha):
        return "behind"
    passed = all(outcome(one) == "success" for one in latest(repository, pull.head_sha).values())
    return "clean" if passed else "unstable"


def refusal(repository: Repository, pull: Pull, method: Method) -> str | None:
    """The text of 405 for a merge; None if it is permitted."""
    if pull.state != "open" or pull.draft:
        return "Pull Request is still a draft" if pull.draft else "Pull Request is not mergeable"
    if not mergeable(repository, pull):
        return "Pull Request has merge conflicts"
    if method not in repository.methods:
        return f"{_NAMES[method]} are not allowed on this repository."
    texts = list(_violations(repository, pull))
    strict = any(one.up_to_date for one in repository.rules_of(pull.base))
    if strict and not repository.git.contains(pull.head_sha, pull.base_sha):
        texts.append("Head branch is out of date. Review and try the merge again.")
    if not texts:
        return None
    if any(one.ruleset for one in repository.rules_of(pull.base)):
        return "Repository rule violations found\n\n" + "".join(f"{text}\n\n" for text in texts)
    return texts[0]


def _violations(repository: Repository, pull: Pull) -> Iterator[str]:
    for rules in repository.rules_of(pull.base):
        yield from _of_checks(repository, pull, rules)
        yield from _of_reviews(pull, rules)
        commits = repository.git.between(pull.base_sha, pull.head_sha) if rules.signatures else []
        if not repository.verified.issuperset(commits):
            yield "Commits must have verified signatures."
        if rules.merge_queue:
            yield "Changes must be made through the merge queue"


def _of_checks(repository: Repository, pull: Pull, rules: BranchRules) -> Iterator[str]:
    known = latest(repository, pull.head_sha)
    outcomes = {name: outcome(known.get(name)) for name in rules.checks}
    missing = {name: one for name, one in outcomes.items() if one != "success"}
    if len(missing) == 1:
        ((name, one),) = missing.items()
        yield f'Required status check "{name}" is {one}.'
    elif missing:
        kinds = sorted(set(missing.values()))
        counts = ", ".join(f"{list(missing.values()).count(one)} {one}" for one in kinds)
        yield f"{len(missing)} of {len(outcomes)} required status checks have not succeeded: {counts}."


def _of_reviews(pull: Pull, rules: BranchRules) -> Iterator[str]:
    if not rules.approvals:
        return
    opinions = {one.author.login: one.state for one in pull.reviews if one.state != "COMMENTED"}
    refused = [login for login, opinion in opinions.items() if opinion == "CHANGES_REQUESTED"]
    approved = [login for login, opinion in opinions.items() if opinion == "APPROVED" and login != pull.author.login]
    if refused:
        yield f"{len(refused)} review requesting changes by reviewers with write access."
    elif len(approved) < rules.approvals:
        yield f"At least {rules.approvals} approving review is required by reviewers with write access."
