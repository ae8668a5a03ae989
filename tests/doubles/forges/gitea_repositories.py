"""Gitea's routes of repositories, branches, statuses, issues, labels and comments."""

from typing import Any, Final

from tests.doubles.forges.bare_repository import GitError
from tests.doubles.forges.forge_state import Comment, Label
from tests.doubles.forges.gitea_exchange import Exchange, Route, refused
from tests.doubles.forges.pull_states import latest, outcome
from tests.doubles.forges.replies import Reply


def get_user(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.user(exchange.token.account))


def get_repository(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.repository(exchange.repository))


def _branch(exchange: Exchange, name: str) -> dict[str, Any]:
    git = exchange.repository.git
    sha = git.head(name)
    if sha is None:
        raise refused(404, f"branch does not exist [repo_id: {exchange.repository.id} name: {name}]")
    return exchange.shapes.branch(exchange.repository, name, git.show(sha))


def list_branches(exchange: Exchange) -> Reply:
    return exchange.listed(sorted(exchange.repository.git.branches()), lambda name: _branch(exchange, name))


def get_branch(exchange: Exchange) -> Reply:
    return Reply(200, _branch(exchange, exchange.call.parameters["branch"]))


def create_branch(exchange: Exchange) -> Reply:
    git, body = exchange.repository.git, exchange.body
    name, old = body["new_branch_name"], body.get("old_ref_name") or body.get("old_branch_name") or "main"
    sha = git.head(old) or (old if git.is_commit(old) else None)
    if sha is None:
        raise refused(404, "The old branch does not exist")
    if git.head(name):
        raise refused(409, "The branch already exists.")
    try:
        git.move(name, sha, None)
    except GitError as problem:
        raise refused(409, "The branch with the same tag already exists.") from problem
    return Reply(201, _branch(exchange, name))


def delete_branch(exchange: Exchange) -> Reply:
    name = exchange.call.parameters["branch"]
    _branch(exchange, name)
    if name == exchange.repository.default_branch:
        raise refused(403, "can not delete default or pull request target branch")
    if exchange.repository.rules_of(name):
        raise refused(403, "branch protected")
    exchange.repository.git.delete(f"refs/heads/{name}")
    return Reply(204)


def list_protections(exchange: Exchange) -> Reply:
    created = exchange.shapes.repository(exchange.repository)["created_at"]
    return Reply(200, [exchange.shapes.protection(one, created) for one in exchange.repository.rules])


def combined_status(exchange: Exchange) -> Reply:
    repository, ref = exchange.repository, exchange.call.parameters["ref"]
    sha = repository.git.head(ref) or ref
    every = list(latest(repository, sha).values())
    outcomes = {outcome(one) for one in every}
    state = "failure" if "failing" in outcomes else "pending" if "pending" in outcomes else "success" if every else ""
    url = f"{exchange.gitea.api_url}/repos/{repository.full_name}/commits/{sha}"
    shown = [exchange.shapes.status(repository, one, exchange.token.account) for one in every]
    about = {"state": state, "sha": sha, "total_count": len(every), "statuses": shown or None}
    return Reply(200, {**about, "repository": exchange.shapes.repository(repository), "commit_url": url, "url": url})


def get_issue(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.issue(exchange.repository, exchange.issue()))


def repository_labels(exchange: Exchange) -> Reply:
    every = list(exchange.repository.labels.values())
    return exchange.listed(every, lambda one: exchange.shapes.label(exchange.repository, one))


def create_label(exchange: Exchange) -> Reply:
    """Gitea permits several labels with one name; the double does not."""
    body = exchange.body
    made = Label(body["name"], body["color"].removeprefix("#"), body.get("description", ""))
    exchange.repository.labels[made.name] = made
    return Reply(201, exchange.shapes.label(exchange.repository, made))


def issue_labels(exchange: Exchange) -> Reply:
    return Reply(200, [exchange.shapes.label(exchange.repository, one) for one in exchange.issue().labels])


def add_labels(exchange: Exchange) -> Reply:
    """Add labels by id or name; unlike GitHub, Gitea creates none."""
    issue, known = exchange.issue(), exchange.repository.labels.values()
    wanted = exchange.body.get("labels", [])
    new = [one for one in known if (one.id in wanted or one.name in wanted) and one not in issue.labels]
    issue.labels += new
    return issue_labels(exchange)


def list_comments(exchange: Exchange) -> Reply:
    issue = exchange.issue()
    return Reply(200, [exchange.shapes.comment(exchange.repository, issue, one) for one in issue.comments])


def create_comment(exchange: Exchange) -> Reply:
    issue = exchange.issue()
    issue.comments.append(Comment(exchange.token.account, exchange.body["body"], exchange.gitea.clock.now()))
    return Reply(201, exchange.shapes.comment(exchange.repository, issue, issue.comments[-1]))


ROUTES: Final = {
    "user_get_current": Route(get_user, "user"),
    "repo_get": Route(get_repository),
    "repo_list_branches": Route(list_branches),
    "repo_get_branch": Route(get_branch),
    "repo_create_branch": Route(create_branch, level="write"),
    "repo_delete_branch": Route(delete_branch, level="write"),
    "repo_list_branch_protection": Route(list_protections),
    "repo_get_combined_status_by_ref": Route(combined_status),
    "issue_get_issue": Route(get_issue, "issue"),
    "issue_list_labels": Route(repository_labels, "issue"),
    "issue_create_label": Route(create_label, "issue", "write"),
    "issue_get_labels": Route(issue_labels, "issue"),
    "issue_add_label": Route(add_labels, "issue", "write"),
    "issue_get_comments": Route(list_comments, "issue"),
    "issue_create_comment": Route(create_comment, "issue", "write"),
}
