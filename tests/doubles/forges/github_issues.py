"""GitHub's routes of issues, labels and comments."""

from typing import Any, Final

from tests.doubles.forges.forge_state import Comment
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import error
from tests.doubles.forges.replies import Reply


def get_issue(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.issue(exchange.repository, exchange.issue()))


def list_labels(exchange: Exchange) -> Reply:
    return _labels(exchange)


def add_labels(exchange: Exchange) -> Reply:
    """Add labels; those that the repository lacks are created."""
    issue = exchange.issue()
    known = {one.name for one in issue.labels}
    issue.labels += [exchange.repository.label(name) for name in _names(exchange.call.body) if name not in known]
    return _labels(exchange)


def set_labels(exchange: Exchange) -> Reply:
    exchange.issue().labels = [exchange.repository.label(name) for name in _names(exchange.call.body)]
    return _labels(exchange)


def remove_label(exchange: Exchange) -> Reply:
    issue, name = exchange.issue(), exchange.parameter("name")
    if name not in {one.name for one in issue.labels}:
        raise error(404, "Label does not exist")
    issue.labels = [one for one in issue.labels if one.name != name]
    return _labels(exchange)


def _names(body: Any) -> list[str]:
    every = body.get("labels", []) if isinstance(body, dict) else body
    names = [one if isinstance(one, str) else one["name"] for one in every]
    return list(dict.fromkeys(names))


def _labels(exchange: Exchange) -> Reply:
    shown = [exchange.shapes.label(exchange.repository, one) for one in exchange.issue().labels]
    return Reply(200, shown)


def list_comments(exchange: Exchange) -> Reply:
    issue = exchange.issue()
    return exchange.listed(issue.comments, lambda one: exchange.shapes.comment(exchange.repository, issue, one))


def create_comment(exchange: Exchange) -> Reply:
    issue = exchange.issue()
    made = Comment(exchange.sender.account, exchange.body["body"], exchange.github.clock.now())
    issue.comments.append(made)
    return Reply(201, exchange.shapes.comment(exchange.repository, issue, made))


ROUTES: Final = {
    "issues/get": Route(get_issue, "issues"),
    "issues/list-labels-on-issue": Route(list_labels, "issues"),
    "issues/add-labels": Route(add_labels, "issues", "write"),
    "issues/set-labels": Route(set_labels, "issues", "write"),
    "issues/remove-label": Route(remove_label, "issues", "write"),
    "issues/list-comments": Route(list_comments, "issues"),
    "issues/create-comment": Route(create_comment, "issues", "write"),
}
