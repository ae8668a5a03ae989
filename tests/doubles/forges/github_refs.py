"""GitHub's routes of repositories, branches, refs, commits and rules."""

from typing import Any, Final

from tests.doubles.forges.bare_repository import GitError
from tests.doubles.forges.forge_state import BranchRules
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import error, failed
from tests.doubles.forges.merges import merge
from tests.doubles.forges.pull_states import latest, outcome
from tests.doubles.forges.replies import Reply


def get_repository(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.full_repository(exchange.repository))


def list_branches(exchange: Exchange) -> Reply:
    every = sorted(exchange.repository.git.branches().items())
    if protected := exchange.call.query.get("protected"):
        every = [one for one in every if bool(exchange.repository.rules_of(one[0])) == (protected == "true")]
    return exchange.listed(every, lambda one: _short(exchange, *one))


def _short(exchange: Exchange, name: str, sha: str) -> dict[str, Any]:
    url = f"{exchange.github.api_url}/repos/{exchange.repository.full_name}/commits/{sha}"
    return {
        "name": name,
        "commit": {"sha": sha, "url": url},
        "protected": bool(exchange.repository.rules_of(name)),
    }


def get_branch(exchange: Exchange) -> Reply:
    name = exchange.parameter("branch")
    sha = exchange.repository.git.head(name)
    if sha is None:
        raise error(404, "Branch not found")
    base = f"{exchange.github.api_url}/repos/{exchange.repository.full_name}/branches/{name}"
    rules = exchange.repository.rules_of(name)
    checks = [one for each in rules for one in each.checks]
    required = {
        "enforcement_level": "everyone" if checks else "off",
        "contexts": checks,
        "checks": [{"context": one, "app_id": None} for one in checks],
    }
    return Reply(200, {
        **_short(exchange, name, sha),
        "commit": exchange.shapes.commit(exchange.repository, exchange.repository.git.show(sha)),
        "_links": {"self": base, "html": f"{exchange.github.url}/{exchange.repository.full_name}/tree/{name}"},
        "protection": {"enabled": bool(rules), "required_status_checks": required},
        "protection_url": f"{base}/protection",
    })  # fmt: skip


def get_protection(exchange: Exchange) -> Reply:
    """Get the protection of a branch. An app without administration permission gets 403, other senders 404."""
    if exchange.sender.kind == "installation":
        raise error(403, "Resource not accessible by integration")
    raise error(404, "Not Found")


def get_rules(exchange: Exchange) -> Reply:
    rules = [one for one in exchange.repository.rules_of(exchange.parameter("branch")) if one.ruleset]
    return exchange.listed([rule for one in rules for rule in _rules(exchange, one)], lambda rule: rule)


def _rules(exchange: Exchange, rules: BranchRules) -> list[dict[str, Any]]:
    reviews = {
        "required_approving_review_count": rules.approvals,
        "dismiss_stale_reviews_on_push": False,
        "require_code_owner_review": False,
        "require_last_push_approval": False,
        "required_review_thread_resolution": False,
        "allowed_merge_methods": sorted(exchange.repository.methods),
    }
    checks = {
        "strict_required_status_checks_policy": rules.up_to_date,
        "required_status_checks": [{"context": name} for name in rules.checks],
    }
    queue = {
        "check_response_timeout_minutes": 60,
        "grouping_strategy": "ALLGREEN",
        "max_entries_to_build": 5,
        "max_entries_to_merge": 5,
        "merge_method": "MERGE",
        "min_entries_to_merge": 1,
        "min_entries_to_merge_wait_minutes": 0,
    }
    wanted: list[dict[str, Any]] = [{"type": "pull_request", "parameters": reviews}]
    wanted += [{"type": "required_status_checks", "parameters": checks}] if rules.checks else []
    wanted += [{"type": "merge_queue", "parameters": queue}] if rules.merge_queue else []
    wanted += [{"type": "required_signatures"}] if rules.signatures else []
    source = {"ruleset_source_type": "Repository", "ruleset_source": exchange.repository.full_name, "ruleset_id": 1}
    return [{**one, **source} for one in wanted]


def get_ref(exchange: Exchange) -> Reply:
    name = f"refs/{exchange.parameter('ref')}"
    sha = exchange.repository.git.refs(name).get(name)
    if sha is None:
        raise error(404, "Not Found")
    return Reply(200, exchange.shapes.ref(exchange.repository, name, sha))


def matching_refs(exchange: Exchange) -> Reply:
    every = exchange.repository.git.refs(f"refs/{exchange.parameter('ref')}")
    return Reply(200, [exchange.shapes.ref(exchange.repository, *one) for one in sorted(every.items())])


def create_ref(exchange: Exchange) -> Reply:
    name, sha, git = exchange.body["ref"], exchange.body["sha"], exchange.repository.git
    if not git.branches():
        raise error(409, "Git Repository is empty.")
    if not name.startswith("refs/") or name.count("/") < 2:  # as GitHub documents it
        raise failed_ref("Reference name must start with 'refs/' and contain at least two slashes")
    if name in git.refs():
        raise failed_ref("Reference already exists")
    if not git.is_commit(sha):
        raise failed_ref("Object does not exist")
    try:
        git.run("check-ref-format", name)
        git.run("update-ref", name, sha, "0" * 40)
    except GitError as problem:
        raise failed_ref(f"{name} is not a valid ref name.") from problem
    return Reply(201, exchange.shapes.ref(exchange.repository, name, sha))


def failed_ref(message: str) -> Exception:
    """Respond with 422 as routes of refs do, without a list of errors."""
    return error(422, message)


def update_ref(exchange: Exchange) -> Reply:
    name, sha, git = f"refs/{exchange.parameter('ref')}", exchange.body["sha"], exchange.repository.git
    old = git.refs(name).get(name)
    if old is None:
        raise failed_ref("Reference does not exist")
    if not git.is_commit(sha):
        raise failed_ref("Object does not exist")
    _refuse_protected(exchange, name)
    if not exchange.body.get("force") and not git.contains(sha, old):
        raise failed_ref("Update is not a fast forward")
    git.run("update-ref", name, sha, old)
    return Reply(200, exchange.shapes.ref(exchange.repository, name, sha))


def delete_ref(exchange: Exchange) -> Reply:
    name, git = f"refs/{exchange.parameter('ref')}", exchange.repository.git
    if name not in git.refs(name):
        raise failed_ref("Reference does not exist")
    if name == f"refs/heads/{exchange.repository.default_branch}":
        raise failed_ref("Cannot delete the default branch")
    _refuse_protected(exchange, name)
    git.delete(name)
    return Reply(204)


def _refuse_protected(exchange: Exchange, name: str) -> None:
    if exchange.repository.rules_of(name.removeprefix("refs/heads/")):
        raise failed_ref("Repository rule violations found\n\nChanges must be made through a pull request.\n\n")


def merge_branches(exchange: Exchange) -> Reply:
    git, body = exchange.repository.git, exchange.body
    base = git.head(body["base"])
    head = git.head(body["head"]) or (body["head"] if git.is_commit(body["head"]) else None)
    if base is None or head is None:
        raise error(404, "Base does not exist" if base is None else "Head does not exist")
    if git.contains(base, head):
        return Reply(204)
    message = body.get("commit_message") or f"Merge {body['head']} into {body['base']}"
    made = merge(git, base, head, "merge", message)
    if made is None:
        raise error(409, "Merge conflict")
    git.move(body["base"], made, base)
    return Reply(201, exchange.shapes.commit(exchange.repository, git.show(made)))


def check_runs(exchange: Exchange) -> Reply:
    repository, sha = exchange.repository, _commit(exchange)
    every = [one for one in repository.checks if one.commit == sha and not one.is_status]
    if exchange.call.query.get("filter", "latest") == "latest":
        every = list({one.name: one for one in every}.values())
    if name := exchange.call.query.get("check_name"):
        every = [one for one in every if one.name == name]
    shown, headers = exchange.page(every, lambda one: exchange.shapes.check(repository, one))
    return Reply(200, {"total_count": len(every), "check_runs": shown}, headers)


def combined_status(exchange: Exchange) -> Reply:
    repository, sha = exchange.repository, _commit(exchange)
    every = [one for one in latest(repository, sha).values() if one.is_status]
    outcomes = {outcome(one) for one in every}
    state = "failure" if "failing" in outcomes else "success" if outcomes == {"success"} else "pending"
    base = f"{exchange.github.api_url}/repos/{repository.full_name}/commits/{sha}"
    shown, headers = exchange.page(every, lambda one: exchange.shapes.status(repository, one))
    whole = {"state": state, "sha": sha, "total_count": len(every), "statuses": shown,
             "repository": exchange.shapes.minimal_repository(repository), "commit_url": base,
             "url": f"{base}/status"}  # fmt: skip
    return Reply(200, whole, headers)


def list_statuses(exchange: Exchange) -> Reply:
    """List all statuses of a commit, newest first, including those replaced by a later one of the same context."""
    sha = _commit(exchange)
    every = [one for one in reversed(exchange.repository.checks) if one.is_status and one.commit == sha]
    creator = exchange.github.account("ci")
    return exchange.listed(every, lambda one: exchange.shapes.full_status(exchange.repository, one, creator))


def get_commit(exchange: Exchange) -> Reply:
    return Reply(200, exchange.shapes.commit(exchange.repository, exchange.repository.git.show(_commit(exchange))))


def _commit(exchange: Exchange) -> str:
    """The commit of a branch or of a SHA."""
    git, ref = exchange.repository.git, exchange.parameter("ref")
    sha = git.head(ref.removeprefix("heads/")) or (ref if git.is_commit(ref) else None)
    if sha is None:
        raise failed("Commit", "sha", "invalid", f"No commit found for SHA: {ref}")
    return sha


ROUTES: Final = {
    "repos/get": Route(get_repository),
    "repos/list-branches": Route(list_branches, "contents"),
    "repos/get-branch": Route(get_branch, "contents"),
    "repos/get-branch-protection": Route(get_protection),
    "repos/get-branch-rules": Route(get_rules),
    "git/get-ref": Route(get_ref, "contents"),
    "git/list-matching-refs": Route(matching_refs, "contents"),
    "git/create-ref": Route(create_ref, "contents", "write"),
    "git/update-ref": Route(update_ref, "contents", "write"),
    "git/delete-ref": Route(delete_ref, "contents", "write"),
    "repos/merge": Route(merge_branches, "contents", "write"),
    "checks/list-for-ref": Route(check_runs, "checks"),
    "repos/get-combined-status-for-ref": Route(combined_status, "statuses"),
    "repos/list-commit-statuses-for-ref": Route(list_statuses, "statuses"),
    "repos/get-commit": Route(get_commit, "contents"),
}
