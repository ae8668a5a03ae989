"""Gitea's routes of pull requests."""

from typing import Any, Final

from tests.doubles.forges.forge_state import Account, Pull, Review
from tests.doubles.forges.gitea_exchange import Exchange, Route, refused
from tests.doubles.forges.merges import Method, merge
from tests.doubles.forges.pull_states import latest, mergeable, outcome
from tests.doubles.forges.replies import Reply

_STYLES: Final[dict[str, Method]] = {"merge": "merge", "squash": "squash", "rebase": "rebase"}


def _shown(exchange: Exchange, pull: Pull) -> dict[str, Any]:
    known = pull.state == "open" and pull.unknown_gets == 0
    able = known and not pull.draft and mergeable(exchange.repository, pull)
    return exchange.shapes.pull(exchange.repository, pull, mergeable=able)


def list_pulls(exchange: Exchange) -> Reply:
    """List by state and base; Gitea has no filter by head."""
    query, every = exchange.call.query, exchange.repository.pulls.values()
    wanted, base = query.get("state", "open"), query.get("base_branch", "")
    found = [one for one in every if wanted in {"all", one.state} and base in {"", one.base}]
    return exchange.listed(sorted(found, key=lambda one: -one.number), lambda one: _shown(exchange, one))


def create_pull(exchange: Exchange) -> Reply:
    """201, 404 for a missing branch, or 409 for a second one."""
    body, repository = exchange.body, exchange.repository
    head, base = body.get("head", ""), body.get("base", "")
    branches = repository.git.branches()
    if head == base:
        raise refused(422, "Invalid PullRequest: There are no changes between the head and the base")
    if base not in branches or head not in branches:
        raise refused(404, "The target couldn't be found.")
    for one in repository.pulls.values():
        if (one.head, one.base, one.state) == (head, base, "open"):
            text = f"pull request already exists for these targets [id: {one.id}, issue_id: {one.number}, "
            raise refused(409, f"{text}head_repo_id: 1, base_repo_id: 1, head_branch: {head}, base_branch: {base}]")
    pull = Pull(
        repository.next_number(), body.get("title", ""), body.get("body"), exchange.token.account,
        exchange.gitea.clock.now(), head=head, base=base, head_sha=branches[head], base_sha=branches[base],
        draft=_is_draft(body.get("title", "")), unknown_gets=exchange.gitea.checking,
    )  # fmt: skip
    pull.labels = [one for one in repository.labels.values() if one.id in body.get("labels", [])]
    pull.reviewers = [exchange.gitea.account(login) for login in body.get("reviewers", [])]
    repository.issues[pull.number] = pull
    return Reply(201, _shown(exchange, pull))


def _is_draft(title: str) -> bool:
    """Whether the title marks a draft; Gitea has no other mark."""
    return title.upper().startswith(("WIP:", "[WIP]"))


def get_pull(exchange: Exchange) -> Reply:
    pull = exchange.pull()
    reply = Reply(200, _shown(exchange, pull))
    pull.unknown_gets = max(0, pull.unknown_gets - 1)
    return reply


def find_pull(exchange: Exchange) -> Reply:
    """Find a pull request by base and head."""
    wanted = exchange.call.parameters["base"], exchange.call.parameters["head"]
    found = [one for one in exchange.repository.pulls.values() if (one.base, one.head) == wanted]
    if not found:
        raise refused(404, "The target couldn't be found.")
    return Reply(200, _shown(exchange, found[-1]))


def edit_pull(exchange: Exchange) -> Reply:
    pull, body, now = exchange.pull(), exchange.body, exchange.gitea.clock.now()
    pull.title, pull.body, pull.updated = body.get("title", pull.title), body.get("body", pull.body), now
    pull.draft = _is_draft(pull.title)
    if body.get("state") == "closed" and pull.state == "open":
        pull.state, pull.closed = "closed", now
    if "labels" in body:
        pull.labels = [one for one in exchange.repository.labels.values() if one.id in body["labels"]]
    return Reply(201, _shown(exchange, pull))


def merge_pull(exchange: Exchange) -> Reply:
    """200 without a body, 405 if it is not ready, 409 for a conflict or a moved head."""
    pull, repository, body = exchange.pull(), exchange.repository, exchange.body
    if text := _refusal(exchange, pull):
        raise refused(405, text)
    style = body["do"]
    if style not in _STYLES or _STYLES[style] not in repository.methods:
        raise refused(405, f"{style} is not allowed an allowed merge style for this repository")
    if body.get("head_commit_id", pull.head_sha) != pull.head_sha:
        raise refused(409, "head out of date")
    if "head_commit_id" not in body:
        exchange.gitea.unguarded_merges.append(exchange.call)
    message = body.get("merge_title_field") or f"Merge pull request '{pull.title}' (#{pull.number})"
    made = merge(repository.git, pull.base_sha, pull.head_sha, _STYLES[style], message)
    if made is None:
        raise refused(409, "merge conflict")
    repository.git.move(pull.base, made, pull.base_sha)
    _record(exchange, pull, made, exchange.token.account)
    return Reply(200)


def _record(exchange: Exchange, pull: Pull, commit: str, account: Account) -> None:
    pull.state, pull.merge_commit, pull.merged_by = "closed", commit, account
    pull.merged = pull.closed = pull.updated = exchange.gitea.clock.now()
    if exchange.body.get("delete_branch_after_merge"):
        exchange.repository.git.delete(f"refs/heads/{pull.head}")


def _refusal(exchange: Exchange, pull: Pull) -> str | None:
    if pull.state != "open":
        return "The PR is already merged" if pull.merged else "The PR is closed"
    if pull.draft:
        return "Work in progress PRs cannot be merged"
    if pull.unknown_gets:
        pull.unknown_gets -= 1
        return "Please try again later"
    known = latest(exchange.repository, pull.head_sha)
    for rules in exchange.repository.rules_of(pull.base):
        if any(outcome(known.get(name)) != "success" for name in rules.checks):
            return "not allowed to merge [reason: Not all required status checks successful]"
        if sum(one.state == "APPROVED" for one in pull.reviews) < rules.approvals:
            return "not allowed to merge [reason: Does not have enough approvals]"
    return None


def is_merged(exchange: Exchange) -> Reply:
    if exchange.pull().merged is None:
        raise refused(404, "The target couldn't be found.")
    return Reply(204)


def update_branch(exchange: Exchange) -> Reply:
    """Merge the base into the head, before the response."""
    pull, git = exchange.pull(), exchange.repository.git
    made = merge(git, pull.head_sha, pull.base_sha, "merge", f"Merge branch '{pull.base}' into {pull.head}")
    if made is None:
        raise refused(409, "merge failed because of conflict")
    git.move(pull.head, made, pull.head_sha)
    return Reply(200)


def list_reviews(exchange: Exchange) -> Reply:
    pull = exchange.pull()
    return exchange.listed(pull.reviews, lambda one: exchange.shapes.review(exchange.repository, pull, one))


def request_reviewers(exchange: Exchange) -> Reply:
    """Request reviews of collaborators only."""
    pull, wanted = exchange.pull(), exchange.body.get("reviewers", [])
    if missing := set(wanted) - exchange.repository.collaborators:
        raise refused(422, f"Reviewer can't read [user_id: 0, repo_name: {min(missing)}]")
    if pull.author.login in wanted:
        raise refused(422, "poster of pr can't be reviewer")
    new = [exchange.gitea.account(login) for login in wanted]
    pull.reviewers += [one for one in new if one not in pull.reviewers]
    requests = [Review(one, "REQUEST_REVIEW", pull.head_sha, exchange.gitea.clock.now()) for one in new]
    return Reply(201, [exchange.shapes.review(exchange.repository, pull, one) for one in requests])


ROUTES: Final = {
    "repo_list_pull_requests": Route(list_pulls),
    "repo_create_pull_request": Route(create_pull, level="write"),
    "repo_get_pull_request": Route(get_pull),
    "repo_get_pull_request_by_base_head": Route(find_pull),
    "repo_edit_pull_request": Route(edit_pull, level="write"),
    "repo_merge_pull_request": Route(merge_pull, level="write"),
    "repo_pull_request_is_merged": Route(is_merged),
    "repo_update_pull_request": Route(update_branch, level="write"),
    "repo_list_pull_reviews": Route(list_reviews),
    "repo_create_pull_review_requests": Route(request_reviewers, level="write"),
}
