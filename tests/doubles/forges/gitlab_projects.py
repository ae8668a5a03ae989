"""GitLab's routes of projects, branches, pipelines, labels and issues."""

from typing import Any, Final

from tests.doubles.forges.bare_repository import GitError
from tests.doubles.forges.forge_state import Pull
from tests.doubles.forges.gitlab_exchange import Exchange, Route, refused
from tests.doubles.forges.replies import Reply


def get_user(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.user(exchange.token.account))


def get_project(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.project(exchange.project))


def _branch(exchange: Exchange, name: str) -> dict[str, Any]:
    sha = exchange.project.git.head(name)
    if sha is None:
        raise refused(404, "404 Branch Not Found")
    return exchange.shapes.branch(exchange.project, name, exchange.project.git.show(sha))


def list_branches(exchange: Exchange) -> Reply:
    wanted = exchange.sent.get("search", "")
    names = [name for name in sorted(exchange.project.git.branches()) if wanted in name]
    return exchange.listed(names, lambda name: _branch(exchange, name))


def get_branch(exchange: Exchange) -> Reply:
    return Reply(200, _branch(exchange, exchange.call.parameters["branch"]))


def create_branch(exchange: Exchange) -> Reply:
    """Create a branch. Every refusal is 400; only the texts differ."""
    git, name, ref = exchange.project.git, exchange.sent.get("branch", ""), exchange.sent.get("ref", "")
    sha = git.head(ref) or (ref if git.is_commit(ref) else None)
    if sha is None:
        raise refused(400, f"Invalid reference name: {ref}")
    if git.head(name):
        raise refused(400, "Branch already exists")
    try:
        git.run("check-ref-format", f"refs/heads/{name}")
        git.move(name, sha, None)
    except GitError as problem:
        raise refused(400, "Branch name is invalid") from problem
    return Reply(201, _branch(exchange, name))


def delete_branch(exchange: Exchange) -> Reply:
    name = exchange.call.parameters["branch"]
    _branch(exchange, name)
    if name == exchange.project.default_branch or exchange.project.rules_of(name):
        raise refused(403, "403 Forbidden")
    exchange.project.git.delete(f"refs/heads/{name}")
    return Reply(204)


def protected_branches(exchange: Exchange) -> Reply:
    return exchange.listed(exchange.project.rules, exchange.shapes.protected)


def protected_branch(exchange: Exchange) -> Reply:
    name = exchange.call.parameters["branch"]
    for one in exchange.project.rules:
        if one.pattern == name:
            return Reply(200, exchange.shapes.protected(one))
    raise refused(404, "404 Not found")


def pipelines(exchange: Exchange) -> Reply:
    wanted = exchange.sent.get("sha")
    every = [one for one in exchange.project.checks if not one.is_status and wanted in {None, one.commit}]
    return exchange.listed(every[::-1], lambda one: exchange.shapes.pipeline(exchange.project, one))


def commit_statuses(exchange: Exchange) -> Reply:
    sha = exchange.call.parameters["sha"]
    every = [one for one in exchange.project.checks if one.is_status and one.commit == sha]
    return exchange.listed(every, lambda one: exchange.shapes.status(one, exchange.token.account))


def labels(exchange: Exchange) -> Reply:
    every = list(exchange.project.labels.values())
    return exchange.listed(every, lambda one: {"id": one.id, "name": one.name, "color": f"#{one.color}"})


def get_issue(exchange: Exchange) -> Reply:
    """Get an issue. GitLab numbers issues and merge requests separately; the double's numbers are distinct."""
    found = exchange.project.issues.get(int(exchange.call.parameters["iid"]))
    if found is None or isinstance(found, Pull):
        raise refused(404, "404 Not found")
    return Reply(200, exchange.shapes.issue(exchange.project, found))


ROUTES: Final = {
    "user": Route(get_user),
    "project": Route(get_project),
    "branches": Route(list_branches),
    "branch": Route(get_branch),
    "create_branch": Route(create_branch, writes=True),
    "delete_branch": Route(delete_branch, writes=True),
    "protected_branches": Route(protected_branches),
    "protected_branch": Route(protected_branch),
    "pipelines": Route(pipelines),
    "commit_statuses": Route(commit_statuses),
    "labels": Route(labels),
    "issue": Route(get_issue),
}
