"""GitHub's routes of a pull request's reviews, reviewers and files."""

from typing import Any, Final

from tests.doubles.forges.forge_state import Review
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import error
from tests.doubles.forges.replies import Reply


def list_reviews(exchange: Exchange) -> Reply:
    pull = exchange.pull()
    return exchange.listed(pull.reviews, lambda one: exchange.shapes.review(exchange.repository, pull, one))


def create_review(exchange: Exchange) -> Reply:
    """Create a review. Authors can't approve their own pull requests."""
    pull, states = exchange.pull(), {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED"}
    event, account = exchange.body.get("event", "COMMENT"), exchange.sender.account
    if event == "APPROVE" and account.login == pull.author.login:
        raise error(422, "Unprocessable Entity: Can not approve your own pull request")
    state_now = states.get(event, "COMMENTED")
    made = Review(account, state_now, pull.head_sha, exchange.github.clock.now(), exchange.body.get("body", ""))
    pull.reviews.append(made)
    return Reply(200, exchange.shapes.review(exchange.repository, pull, made))


def list_reviewers(exchange: Exchange) -> Reply:
    shown: list[Any] = [exchange.shapes.account(one) for one in exchange.pull().reviewers]
    return Reply(200, {"users": shown, "teams": []})


def request_reviewers(exchange: Exchange) -> Reply:
    """Request reviews of collaborators, but not of the author."""
    pull, github = exchange.pull(), exchange.github
    for login in exchange.body.get("reviewers", []):
        if login == pull.author.login:
            raise error(422, "Review cannot be requested from pull request author.")
        if login not in exchange.repository.collaborators:
            text = "Reviews may only be requested from collaborators. One or more of the users or teams you specified "
            raise error(422, f"{text}is not a collaborator of the {exchange.repository.full_name} repository.")
    known = {one.login for one in pull.reviewers}
    new = [login for login in exchange.body.get("reviewers", []) if login not in known]
    pull.reviewers += [github.account(login) for login in new]
    return Reply(201, exchange.shapes.pull(exchange.repository, pull))


def remove_reviewers(exchange: Exchange) -> Reply:
    pull, removed = exchange.pull(), set(exchange.body["reviewers"])
    pull.reviewers = [one for one in pull.reviewers if one.login not in removed]
    return Reply(200, exchange.shapes.pull(exchange.repository, pull))


def list_files(exchange: Exchange) -> Reply:
    """List the changed files; a rename is one file removed and one added."""
    pull, git = exchange.pull(), exchange.repository.git
    lines = git.run("diff", "--name-status", "--no-renames", f"{pull.base_sha}...{pull.head_sha}", "--").splitlines()
    statuses = {name: {"A": "added", "D": "removed"}.get(kind, "modified") for kind, name in map(_cells, lines)}
    base = f"{exchange.github.api_url}/repos/{exchange.repository.full_name}"
    return exchange.listed(git.changes(pull.base_sha, pull.head_sha), lambda one: {
        "sha": pull.head_sha,
        "filename": one[2],
        "status": statuses[one[2]],
        "additions": one[0],
        "deletions": one[1],
        "changes": one[0] + one[1],
        "blob_url": f"{exchange.github.url}/{exchange.repository.full_name}/blob/{pull.head_sha}/{one[2]}",
        "raw_url": f"{exchange.github.url}/{exchange.repository.full_name}/raw/{pull.head_sha}/{one[2]}",
        "contents_url": f"{base}/contents/{one[2]}?ref={pull.head_sha}",
    })  # fmt: skip


def _cells(line: str) -> tuple[str, str]:
    kind, name = line.split("\t", 1)
    return kind, name


ROUTES: Final = {
    "pulls/list-files": Route(list_files, "pull_requests"),
    "pulls/list-reviews": Route(list_reviews, "pull_requests"),
    "pulls/create-review": Route(create_review, "pull_requests", "write"),
    "pulls/list-requested-reviewers": Route(list_reviewers, "pull_requests"),
    "pulls/request-reviewers": Route(request_reviewers, "pull_requests", "write"),
    "pulls/remove-requested-reviewers": Route(remove_reviewers, "pull_requests", "write"),
}
