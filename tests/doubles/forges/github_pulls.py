"""GitHub's routes of pull requests."""

from typing import Final

from tests.doubles.forges.forge_state import Account, Pull
from tests.doubles.forges.github_exchange import Exchange, Route
from tests.doubles.forges.github_pull_shapes import error, failed
from tests.doubles.forges.github_rules import refusal, state
from tests.doubles.forges.merges import Method, merge
from tests.doubles.forges.pull_states import mergeable, refresh
from tests.doubles.forges.replies import Reply

_MODIFIED: Final = "Head branch was modified. Review and try the merge again."


def list_pulls(exchange: Exchange) -> Reply:
    """List by state, head (`owner:branch`) and base; newest first, as GitHub lists them."""
    query = exchange.call.query
    wanted = query.get("state", "open")
    every = [one for one in exchange.repository.pulls.values() if wanted in {"all", one.state}]
    if ":" in query.get("head", ""):  # GitHub ignores a head without an owner
        owner, _, branch = query["head"].partition(":")
        every = [one for one in every if (one.head, exchange.repository.owner.login) == (branch, owner)]
    if base := query.get("base"):
        every = [one for one in every if one.base == base]
    newest_first = query.get("direction", "desc") == "desc"
    every.sort(key=lambda one: one.number, reverse=newest_first)
    return exchange.listed(every, lambda one: exchange.shapes.pull(exchange.repository, one))


def create_pull(exchange: Exchange) -> Reply:
    """Create a pull request: 201, or 422 with the reason."""
    body, repository = exchange.body, exchange.repository
    head, base = _branch(exchange, body["head"]), body["base"]
    branches = repository.git.branches()
    if not body.get("title") and not body.get("issue"):
        raise failed("PullRequest", "title", "missing_field")
    if head not in branches or not _sees(exchange, head, branches[head]):
        raise failed("PullRequest", "head", "invalid")
    if base not in branches:
        raise failed("PullRequest", "base", "invalid")
    if any((one.head, one.base, one.state) == (head, base, "open") for one in repository.pulls.values()):
        text = f"A pull request already exists for {repository.owner.login}:{head}."
        raise _custom(text)
    if not repository.git.between(branches[base], branches[head]):
        raise _custom(f"No commits between {base} and {head}")
    pull = Pull(
        repository.next_number(), body.get("title") or "", body.get("body"), exchange.sender.account,
        exchange.github.clock.now(), head=head, base=base, head_sha=branches[head], base_sha=branches[base],
        draft=body.get("draft", False), unknown_gets=exchange.github.unknown_gets,
    )  # fmt: skip
    repository.issues[pull.number] = pull
    exchange.github.webhooks.pull(repository, pull, "opened", exchange.sender.account)
    return Reply(201, exchange.shapes.full_pull(repository, pull, None, "unknown"))


def _branch(exchange: Exchange, head: str) -> str:
    owner, separator, branch = head.partition(":")
    if separator and owner != exchange.repository.owner.login:
        raise failed("PullRequest", "head", "invalid")  # the double has no forks
    return branch if separator else head


def _custom(message: str) -> Exception:
    return error_with([{"resource": "PullRequest", "code": "custom", "message": message}])


def error_with(errors: list[dict[str, str]]) -> Exception:
    """Respond with 422 and a list of errors without fields."""
    made = failed("", "", "")
    made.reply.body["errors"] = errors
    return made


def _sees(exchange: Exchange, branch: str, sha: str) -> bool:
    """Whether the API of pull requests already sees this push."""
    repository = exchange.repository
    left = repository.unseen_left.setdefault(f"{branch}@{sha}", repository.unseen)
    repository.unseen_left[f"{branch}@{sha}"] = max(0, left - 1)
    return left == 0


def get_pull(exchange: Exchange) -> Reply:
    """Get a pull request; its mergeability is unknown for the first gets after a change."""
    pull, repository = exchange.pull(), exchange.repository
    if pull.update_gets >= 0:
        pull.update_gets -= 1
        if pull.update_gets < 0:
            _update_now(exchange, pull)
    if pull.state != "open":
        return Reply(200, exchange.shapes.full_pull(repository, pull, None, "unknown"))
    pull.shown_unknown = pull.unknown_gets > 0
    if pull.shown_unknown:
        pull.unknown_gets -= 1
        return Reply(200, exchange.shapes.full_pull(repository, pull, None, "unknown"))
    return Reply(200, exchange.shapes.full_pull(repository, pull, mergeable(repository, pull), state(repository, pull)))


def update_pull(exchange: Exchange) -> Reply:
    """Change the title, body, base and state."""
    pull, repository, body = exchange.pull(), exchange.repository, exchange.body
    if body.get("state") == "open" and pull.state == "closed":
        _reopen(exchange, pull)
    if (base := body.get("base")) and base not in repository.git.branches():
        raise failed("PullRequest", "base", "invalid")
    pull.title, pull.body = body.get("title", pull.title), body.get("body", pull.body)
    pull.base, pull.updated = body.get("base", pull.base), exchange.github.clock.now()
    if body.get("state") == "closed" and pull.state == "open":
        pull.state, pull.closed = "closed", exchange.github.clock.now()
        exchange.github.webhooks.pull(repository, pull, "closed", exchange.sender.account)
    refresh(repository, exchange.github.unknown_gets)
    return Reply(200, exchange.shapes.full_pull(repository, pull, None, "unknown"))


def _reopen(exchange: Exchange, pull: Pull) -> None:
    if pull.merged or pull.head not in exchange.repository.git.branches():
        raise error_with([{"resource": "PullRequest", "code": "custom", "message": "state cannot be changed."}])
    pull.state, pull.closed = "open", None


def merge_pull(exchange: Exchange) -> Reply:
    """Merge: 200, 405 with the reason, or 409 if the head has moved."""
    pull, repository, body, github = exchange.pull(), exchange.repository, exchange.body, exchange.github
    method: Method = body.get("merge_method", "merge")
    if pull.state == "open" and "sha" in body and body["sha"] != pull.head_sha:
        raise error(409, _MODIFIED)
    if text := refusal(repository, pull, method):
        raise error(405, text)
    if pull.shown_unknown:
        github.blind_merges.append(exchange.call)
    if "sha" not in body:
        github.unguarded_merges.append(exchange.call)
    title = body.get("commit_title") or f"Merge pull request #{pull.number} from {pull.head}"
    made = merge(repository.git, pull.base_sha, pull.head_sha, method, f"{title}\n\n{body.get('commit_message', '')}")
    if made is None:
        raise error(405, "This branch can't be rebased")
    repository.git.move(pull.base, made, pull.base_sha)
    finish_merge(exchange, pull, made, exchange.sender.account)
    return Reply(200, {"sha": made, "merged": True, "message": "Pull Request successfully merged"})


def finish_merge(exchange: Exchange, pull: Pull, commit: str, account: Account) -> None:
    """Record a merge."""
    exchange.github.record_merge(exchange.repository, pull, commit, account)


def is_merged(exchange: Exchange) -> Reply:
    """Respond with 204 if it is merged, else 404."""
    if exchange.pull().merged is None:
        raise error(404, "Not Found")
    return Reply(204)


def update_branch(exchange: Exchange) -> Reply:
    """Request an update of the branch (202): the base is merged into the head later."""
    pull = exchange.pull()
    expected = exchange.body.get("expected_head_sha", pull.head_sha)
    if expected != pull.head_sha:
        raise failed("PullRequest", "expected_head_sha", "invalid", "expected_head_sha didn't match current head ref.")
    if not mergeable(exchange.repository, pull):
        raise error(422, "merge conflict between base and head")
    if exchange.repository.git.contains(pull.head_sha, pull.base_sha):
        raise error(422, "There are no new commits on the base branch.")
    pull.update_gets = exchange.github.update_gets
    url = f"{exchange.github.url}/{exchange.repository.full_name}/pull/{pull.number}"
    return Reply(202, {"message": "Updating pull request branch.", "url": url})


def _update_now(exchange: Exchange, pull: Pull) -> None:
    git = exchange.repository.git
    made = merge(git, pull.head_sha, pull.base_sha, "merge", f"Merge branch '{pull.base}' into {pull.head}")
    if made:
        git.move(pull.head, made, pull.head_sha)
        refresh(exchange.repository, exchange.github.unknown_gets)


ROUTES: Final = {
    "pulls/list": Route(list_pulls, "pull_requests"),
    "pulls/create": Route(create_pull, "pull_requests", "write"),
    "pulls/get": Route(get_pull, "pull_requests"),
    "pulls/update": Route(update_pull, "pull_requests", "write"),
    "pulls/merge": Route(merge_pull, "contents", "write"),
    "pulls/check-if-merged": Route(is_merged, "contents"),
    "pulls/update-branch": Route(update_branch, "pull_requests", "write"),
}
