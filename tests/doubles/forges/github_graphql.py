"""GitHub's GraphQL, executed by its published schema: the operations of the branch workflow that REST lacks.

They are the merge queue, auto-merge, drafts, and commits that GitHub signs. Errors have status 200, as GitHub's.
"""

import base64
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from graphql import ExecutionResult, GraphQLError, GraphQLSchema, build_schema, graphql_sync, parse
from graphql.language import OperationDefinitionNode

from tests.doubles.forges.clock import stamp
from tests.doubles.forges.documents import github_graphql
from tests.doubles.forges.forge_state import Pull, Repository, Token
from tests.doubles.forges.github_rules import state
from tests.doubles.forges.github_shapes import node
from tests.doubles.forges.merges import Method
from tests.doubles.forges.pull_states import mergeable
from tests.doubles.forges.replies import Reply

if TYPE_CHECKING:
    from tests.doubles.forges.github import GitHub

_METHODS: Final[dict[str, Method]] = {"MERGE": "merge", "SQUASH": "squash", "REBASE": "rebase"}


@cache
def schema() -> GraphQLSchema:
    """GitHub's schema; building it takes about two seconds."""
    return build_schema(github_graphql(), assume_valid=True)


def operation_of(body: Any) -> str:
    """The operation by the first field of a request: `graphql/enqueuePullRequest`; `graphql/` if it can't be read."""
    try:
        first = parse(body["query"]).definitions[0]
    except (GraphQLError, KeyError, TypeError):
        return "graphql/"
    assert isinstance(first, OperationDefinitionNode)
    names = [one.name.value for one in first.selection_set.selections if hasattr(one, "name")]
    return f"graphql/{names[0]}"


def respond(github: "GitHub", token: Token, body: Any) -> Reply:
    """Respond with data or errors. A request that is not valid by the schema is recorded as invalid."""
    root = _Root(github, token)
    done: ExecutionResult = graphql_sync(
        schema(), str(body.get("query", "")), root, variable_values=body.get("variables")
    )
    whole: dict[str, Any] = {"data": done.data} if done.data is not None else {}
    errors = [_shown(github, one) for one in done.errors or []]
    return Reply(200, {**whole, **({"errors": errors} if errors else {})})


def _shown(github: "GitHub", error: GraphQLError) -> dict[str, Any]:
    shown: dict[str, Any] = {"message": error.message, **({"path": error.path} if error.path else {})}
    if isinstance(error.original_error, _RefusalError):
        return {"type": error.original_error.kind, **shown}
    found = github.violations if error.original_error or error.path else github.invalid_requests
    found.append(f"GraphQL: {error}")
    return shown


class _RefusalError(Exception):
    """An error that GitHub sends."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Root:
    """Resolvers of the first fields, under the names that GraphQL has for them."""

    def __init__(self, github: "GitHub", token: Token) -> None:
        self._github, self._token = github, token

    def repository(self, _info: Any, owner: str, name: str, **_others: Any) -> dict[str, Any]:
        found = self._github.repositories.get(f"{owner}/{name}")
        if found is None or not self._token.reaches(found.full_name):
            raise _RefusalError("NOT_FOUND", f"Could not resolve to a Repository with the name '{owner}/{name}'.")
        return {
            "id": node("R", found.id),
            "nameWithOwner": found.full_name,
            "autoMergeAllowed": found.allow_auto_merge,
            "mergeQueue": lambda _info, **_args: self._queue(found),
            "pullRequest": lambda _info, number: self._number(found, number),
        }

    def _queue(self, repository: Repository) -> dict[str, Any] | None:
        if not any(one.merge_queue for one in repository.rules):
            return None
        return {"id": node("MQ", repository.id), "url": f"{self._github.url}/{repository.full_name}/queue"}

    def _number(self, repository: Repository, number: int) -> dict[str, Any]:
        if number not in repository.pulls:
            raise _RefusalError("NOT_FOUND", f"Could not resolve to a PullRequest with the number of {number}.")
        return self._pull(repository, repository.pulls[number])

    def _pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        known = pull.state == "open" and pull.unknown_gets == 0
        able = "UNKNOWN" if not known else "MERGEABLE" if mergeable(repository, pull) else "CONFLICTING"
        entry = {"id": node("MQE", pull.id), "state": "QUEUED", "position": 1, "headCommit": None}
        entry |= {"enqueuedAt": stamp(self._github.clock.now())}
        automatic = {"enabledAt": stamp(self._github.clock.now()), "mergeMethod": (pull.auto_merge or "merge").upper()}
        return {
            "__typename": "PullRequest",
            "id": node("PR", pull.id),
            "number": pull.number,
            "state": "MERGED" if pull.merged else pull.state.upper(),
            "merged": pull.merged is not None,
            "isDraft": pull.draft,
            "title": pull.title,
            "headRefName": pull.head,
            "headRefOid": pull.head_sha,
            "baseRefName": pull.base,
            "mergeable": able,
            "mergeStateStatus": state(repository, pull).upper() if known else "UNKNOWN",
            "isInMergeQueue": pull.queued,
            "mergeQueueEntry": entry if pull.queued else None,
            "autoMergeRequest": automatic if pull.auto_merge else None,
        }

    def _find(self, global_id: str) -> tuple[Repository, Pull]:
        for repository in self._github.repositories.values():
            for pull in repository.pulls.values():
                if node("PR", pull.id) == global_id and self._token.reaches(repository.full_name):
                    return repository, pull
        raise _RefusalError("NOT_FOUND", f"Could not resolve to a node with the global id of '{global_id}'")

    def _changed(self, wanted: dict[str, Any]) -> tuple[Repository, Pull]:
        repository, pull = self._find(wanted["pullRequestId"])
        if not self._token.permits("pull_requests", "write"):
            raise _RefusalError("FORBIDDEN", "Resource not accessible by integration")
        if wanted.get("expectedHeadOid") not in {None, pull.head_sha}:
            raise _RefusalError("UNPROCESSABLE", "Head sha didn't match expected value")
        return repository, pull

    def enqueuePullRequest(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        repository, pull = self._changed(input)
        if not any(one.merge_queue for one in repository.rules_of(pull.base)):
            raise _RefusalError("UNPROCESSABLE", "The target branch does not have a merge queue")
        if pull.state != "open" or pull.draft or not mergeable(repository, pull):
            raise _RefusalError("UNPROCESSABLE", "Pull request is not in a mergeable state")
        pull.queued = True
        self._github.webhooks.pull(repository, pull, "enqueued", self._token.account)
        return {"mergeQueueEntry": self._pull(repository, pull)["mergeQueueEntry"]}

    def dequeuePullRequest(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        repository, pull = self._changed({"pullRequestId": input["id"]})
        pull.queued = False
        return {"mergeQueueEntry": self._pull(repository, pull)["mergeQueueEntry"]}

    def enablePullRequestAutoMerge(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        repository, pull = self._changed(input)
        if not repository.allow_auto_merge:
            raise _RefusalError("UNPROCESSABLE", "Auto merge is not allowed for this repository")
        if state(repository, pull) == "clean":
            raise _RefusalError("UNPROCESSABLE", "Pull request is in clean status")
        pull.auto_merge = _METHODS[input.get("mergeMethod", "MERGE")]
        return {"pullRequest": self._pull(repository, pull)}

    def disablePullRequestAutoMerge(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        repository, pull = self._changed(input)
        pull.auto_merge = None
        return {"pullRequest": self._pull(repository, pull)}

    def markPullRequestReadyForReview(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        repository, pull = self._changed(input)
        pull.draft = False
        return {"pullRequest": self._pull(repository, pull)}

    def convertPullRequestToDraft(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        repository, pull = self._changed(input)
        pull.draft = True
        return {"pullRequest": self._pull(repository, pull)}

    def createCommitOnBranch(self, _info: Any, input: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # its name in the API
        """A commit that GitHub signs."""
        about, changes = input["branch"], input.get("fileChanges") or {}
        repository = self._github.repositories.get(about.get("repositoryNameWithOwner", ""))
        if repository is None or not self._token.reaches(repository.full_name):
            raise _RefusalError("NOT_FOUND", "Could not resolve to a Repository.")
        if not self._token.permits("contents", "write"):
            raise _RefusalError("FORBIDDEN", "Resource not accessible by integration")
        branch, expected = about["branchName"].removeprefix("refs/heads/"), input["expectedHeadOid"]
        if repository.rules_of(branch):
            raise _RefusalError("UNPROCESSABLE", "Repository rule violations found")
        if (head := repository.git.head(branch)) != expected:
            text = f'Expected branch to point to "{expected}" but it points to "{head}". Pull and try again.'
            raise _RefusalError("STALE_DATA", text)
        files: dict[str, str | bytes | None] = {one["path"]: None for one in changes.get("deletions") or []}
        files |= {one["path"]: base64.b64decode(one["contents"]) for one in changes.get("additions") or []}
        message = "\n\n".join(text for text in (input["message"]["headline"], input["message"].get("body")) if text)
        made = repository.git.commit(branch, files, message)
        repository.verified.add(made)
        url = f"{self._github.url}/{repository.full_name}/commit/{made}"
        return {"commit": {"id": node("C", made), "oid": made, "url": url}}
