"""What a pull request shows of its task and its branch. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spawner.forges.forge import PullRequestDraft
from spawner.forges.pull_request_text import FileChange, PullRequestFacts, body_of, title_of
from spawner.pull_requests.terms import Terms
from spawner.repositories.pull_request_record import PullRequestRecord
from spawner.repositories.record import BranchRecord
from spawner.tasks.record import TaskRecord

MAX_TEXT: Final = 4000
"""Characters of a task's text that are stored with its branch: the task's record is removed earlier."""
_ISSUE: Final = re.compile(r"#?([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class About:
    """The task that a pull request is about, and what the last task of the branch cost and checked."""

    task: str
    text: str
    cost_micro_usd: int | None = None
    checks: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def of(cls, record: BranchRecord, last: TaskRecord | None) -> "About":
        """From the branch's pull request, if it has one, or else from its last task until now."""
        pull = record.pull or PullRequestRecord()
        text = last.view(whole=True).text[:MAX_TEXT] if last else ""
        named = (pull.task, pull.text) if pull.task else (record.name, text)
        return cls(*named, cost_micro_usd=_cost(last), checks=_checks(last))


def issue_of(ticket: str | None) -> int | None:
    """The number of the issue that a ticket may be, such as `#42`."""
    found = _ISSUE.fullmatch(ticket or "")
    return int(found[1]) if found else None


def draft_of(
    record: BranchRecord,
    terms: Terms,
    about: About,
    lines: Mapping[str, tuple[int, int]],
    *,
    closes: int | None,
    ready: bool,
    again: bool,
) -> PullRequestDraft:
    """The pull request as it should be. `again`: one that was closed is not the wanted one."""
    facts = PullRequestFacts(
        name=about.task,
        task=about.text or record.branch,
        changes=[FileChange(path, *counts) for path, counts in sorted(lines.items())],
        checks=about.checks,
        cost_micro_dollars=about.cost_micro_usd,
        session_url=_session(terms.session_url, record.project, about.task),
        session_command=f"sandherd tasks get {about.task} --project {record.project}",
        ticket=record.ticket,
        closes=closes,
    )
    return PullRequestDraft(
        head=record.remote_branch,
        base=record.base,
        title=title_of(facts, terms.title),
        body=body_of(facts, terms.body),
        commit=None if again else record.commit,
        draft=not ready,
        labels=terms.labels,
        reviewers=terms.reviewers,
    )


def _session(url: str | None, project: str, task: str) -> str | None:
    return url.replace("{project}", project).replace("{task}", task) if url else None


def _cost(task: TaskRecord | None) -> int | None:
    cost = task.result.get("cost_micro_usd") if task else None
    return cost if isinstance(cost, int) and cost >= 0 else None


def _checks(task: TaskRecord | None) -> tuple[tuple[str, bool], ...]:
    """The command that validated its work, if it had one: a task that completed passed it."""
    validation = task.spec.continuous.validation if task and task.spec.continuous else None
    return ((validation.command, task.state.value == "completed"),) if task and validation else ()
