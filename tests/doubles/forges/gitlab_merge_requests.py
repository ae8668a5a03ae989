"""GitLab's routes of merge requests."""

from typing import Any, Final

from tests.doubles.forges.forge_state import Comment, Pull, Review
from tests.doubles.forges.gitlab_exchange import Exchange, Route, refused
from tests.doubles.forges.gitlab_rules import merge_now, pipeline_of, status_of
from tests.doubles.forges.replies import Reply

_DRAFT: Final = ("draft:", "[draft]", "(draft)")


def _full(exchange: Exchange, pull: Pull) -> dict[str, Any]:
    project = exchange.project
    status = status_of(project, pull, exchange.gitlab.settings[project.full_name])
    return exchange.shapes.full_merge_request(project, pull, status, pipeline_of(project, pull))


def list_merge_requests(exchange: Exchange) -> Reply:
    """List by state, source and target branch; newest first."""
    sent, settings = exchange.sent, exchange.gitlab.settings[exchange.project.full_name]
    wanted = sent.get("state", "all")
    found = [
        one
        for one in exchange.project.pulls.values()
        if wanted in {"all", "merged" if one.merged else one.state.replace("open", "opened")}
        and sent.get("source_branch", one.head) == one.head
        and sent.get("target_branch", one.base) == one.base
    ]
    found.sort(key=lambda one: one.number, reverse=sent.get("sort", "desc") == "desc")
    return exchange.listed(
        found,
        lambda one: exchange.shapes.merge_request(exchange.project, one, status_of(exchange.project, one, settings)),
    )


def create_merge_request(exchange: Exchange) -> Reply:
    """201, 409 for a second one of the same branches, or 422; the text for missing branches is not GitLab's own."""
    project, sent = exchange.project, exchange.sent
    head, base, branches = sent["source_branch"], sent["target_branch"], project.git.branches()
    if head == base:
        raise refused(422, ["You can't use same project/branch for source and target"])
    for name, branch in (("Source", head), ("Target", base)):
        if branch not in branches:
            raise refused(422, [f'{name} branch "{branch}" does not exist'])
    for one in project.pulls.values():
        if (one.head, one.base, one.state) == (head, base, "open"):
            raise refused(409, [f"Another open merge request already exists for this source branch: !{one.number}"])
    pull = Pull(
        project.next_number(), sent["title"], sent.get("description"), exchange.token.account,
        exchange.gitlab.clock.now(), head=head, base=base, head_sha=branches[head], base_sha=branches[base],
        unknown_gets=exchange.gitlab.checking,
    )  # fmt: skip
    project.issues[pull.number] = pull
    _change(exchange, pull)
    return Reply(201, _full(exchange, pull))


def _change(exchange: Exchange, pull: Pull) -> None:
    sent, project = exchange.sent, exchange.project
    pull.title, pull.body = sent.get("title", pull.title), sent.get("description", pull.body)
    pull.base, pull.updated = sent.get("target_branch", pull.base), exchange.gitlab.clock.now()
    pull.draft = pull.title.lower().startswith(_DRAFT)
    names = {one.name for one in pull.labels} if "labels" not in sent else set(_names(sent["labels"]))
    names = (names | set(_names(sent.get("add_labels", [])))) - set(_names(sent.get("remove_labels", [])))
    pull.labels = [project.label(name) for name in sorted(names)]
    if "reviewer_ids" in sent:
        known = exchange.gitlab.accounts.values()
        pull.reviewers = [one for one in known if one.id in sent["reviewer_ids"]]


def _names(labels: Any) -> list[str]:
    every = labels.split(",") if isinstance(labels, str) else labels
    return [name for name in every if name]


def get_merge_request(exchange: Exchange) -> Reply:
    """Get a merge request; its status is `checking` for the first gets after a change."""
    pull = exchange.pull()
    reply = Reply(200, _full(exchange, pull))
    pull.unknown_gets = max(0, pull.unknown_gets - 1)
    return reply


def update_merge_request(exchange: Exchange) -> Reply:
    pull, event = exchange.pull(), exchange.sent.get("state_event")
    _change(exchange, pull)
    if event == "close" and pull.state == "open":
        pull.state, pull.closed = "closed", exchange.gitlab.clock.now()
    elif event == "reopen" and not pull.merged:
        pull.state, pull.closed = "open", None
    return Reply(200, _full(exchange, pull))


def merge(exchange: Exchange) -> Reply:
    """Merge. It is refused in this order: 422 if the status is unknown, 405 for other reasons, 409 for a moved head."""
    pull, project, sent = exchange.pull(), exchange.project, exchange.sent
    if exchange.token.account.login in exchange.gitlab.settings[project.full_name].cannot_merge:
        raise refused(401, "401 Unauthorized")
    status = status_of(project, pull, exchange.gitlab.settings[project.full_name])
    if status == "checking":
        pull.unknown_gets -= 1
        raise refused(422, "Branch cannot be merged")
    later = sent.get("auto_merge") or sent.get("merge_when_pipeline_succeeds")
    if status != "mergeable" and not (later and status == "ci_still_running"):
        raise refused(405, "405 Method Not Allowed")
    if sent.get("sha", pull.head_sha) != pull.head_sha:
        raise refused(409, f"SHA does not match HEAD of source branch: {pull.head_sha}")
    if "sha" not in sent:
        exchange.gitlab.unguarded_merges.append(exchange.call)
    if status == "ci_still_running":
        pull.queued, pull.merged_by = True, exchange.token.account
        return Reply(200, _full(exchange, pull))
    remove = bool(sent.get("should_remove_source_branch"))
    merge_now(exchange.gitlab, project, pull, exchange.token.account, squash=bool(sent.get("squash")), remove=remove)
    return Reply(200, _full(exchange, pull))


def rebase(exchange: Exchange) -> Reply:
    """Request a rebase (202); it is in progress, and the double does not finish it."""
    exchange.pull()
    return Reply(202, {"rebase_in_progress": True})


def approvals(exchange: Exchange) -> Reply:
    return Reply(200, _approvals(exchange, exchange.pull()))


def _approvals(exchange: Exchange, pull: Pull) -> dict[str, Any]:
    settings = exchange.gitlab.settings[exchange.project.full_name]
    whole = exchange.shapes.merge_request(exchange.project, pull, "mergeable")
    names = ("id", "iid", "project_id", "title", "description", "state", "created_at", "updated_at", "merge_status")
    by = [{"user": exchange.shapes.user(one.author)} for one in pull.reviews]
    left = max(0, settings.approvals - len(by))
    about = {name: whole[name] for name in names}
    return {**about, "approvals_required": settings.approvals, "approvals_left": left, "approved_by": by,
            "approved": not left}  # fmt: skip


def approve(exchange: Exchange) -> Reply:
    """Approve: 401 for the author, and for a second approval; 409 if the head is another commit."""
    pull, account = exchange.pull(), exchange.token.account
    if exchange.sent.get("sha", pull.head_sha) != pull.head_sha:
        raise refused(409, f"SHA does not match HEAD of source branch: {pull.head_sha}")
    if account == pull.author or account in [one.author for one in pull.reviews]:
        raise refused(401, "401 Unauthorized")
    pull.reviews.append(Review(account, "APPROVED", pull.head_sha, exchange.gitlab.clock.now()))
    return Reply(201, _approvals(exchange, pull))


def list_notes(exchange: Exchange) -> Reply:
    pull = exchange.pull()
    return exchange.listed(pull.comments, lambda one: exchange.shapes.note(exchange.project, pull, one))


def create_note(exchange: Exchange) -> Reply:
    pull = exchange.pull()
    pull.comments.append(Comment(exchange.token.account, exchange.sent["body"], exchange.gitlab.clock.now()))
    return Reply(201, exchange.shapes.note(exchange.project, pull, pull.comments[-1]))


def list_pipelines(exchange: Exchange) -> Reply:
    found = [one for one in exchange.project.checks if one.commit == exchange.pull().head_sha and not one.is_status]
    return exchange.listed(found[::-1], lambda one: exchange.shapes.pipeline(exchange.project, one))


ROUTES: Final = {
    "merge_requests": Route(list_merge_requests),
    "create_merge_request": Route(create_merge_request, writes=True),
    "merge_request": Route(get_merge_request),
    "update_merge_request": Route(update_merge_request, writes=True),
    "merge": Route(merge, writes=True),
    "rebase": Route(rebase, writes=True),
    "approvals": Route(approvals),
    "approve": Route(approve, writes=True),
    "notes": Route(list_notes),
    "create_note": Route(create_note, writes=True),
    "merge_request_pipelines": Route(list_pipelines),
}
