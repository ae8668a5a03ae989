"""The facts about a task and its branch that are shown in a pull request. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spawner.forges.body_section import new_section
from spawner.forges.forge import PullRequestDraft
from spawner.forges.pull_request_text import FileChange, PullRequestFacts, body_of, title_of
from spawner.pull_requests.pull_request_options import PullRequestTerms
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.pull_request_record import PullRequestRecord
from spawner.tasks.task_record import TaskRecord

MAX_TEXT_CHARACTERS: Final = 4000
"""Maximum characters of a task's text that are stored with its branch, because the task's record is removed earlier."""
_ISSUE: Final = re.compile(r"#?([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class PullRequestTask:
    """The task that a pull request describes, the checks of the branch's last task, and the costs of all its tasks."""

    task: str
    text: str
    costs: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[tuple[str, bool], ...] = ()

    @property
    def cost_micro_usd(self) -> int | None:
        """The sum of the costs; None if no task has reported one."""
        return sum(self.costs.values()) if self.costs else None

    @classmethod
    def of(cls, record: BranchRecord, tasks: Mapping[str, TaskRecord]) -> "PullRequestTask":
        """The task in the record of the branch's pull request, or else the branch's present last task.

        `tasks`: the records that still exist. The costs of other tasks were stored when the pull request was opened or
        updated.
        """
        pull, last = record.pull or PullRequestRecord(), tasks.get(record.name)
        reported = {name: _cost(tasks[name]) if name in tasks else pull.costs.get(name) for name in record.tasks}
        costs = {name: cost for name, cost in reported.items() if cost is not None}
        text = last.view(whole=True).text[:MAX_TEXT_CHARACTERS] if last else ""
        task_and_text = (pull.task, pull.text) if pull.task else (record.name, text)
        return cls(*task_and_text, costs=costs, checks=_checks(last))


def issue_of(ticket: str | None) -> int | None:
    """The number of the issue that a ticket such as `#42` may name, or None."""
    match = _ISSUE.fullmatch(ticket or "")
    return int(match[1]) if match else None


def draft_of(
    record: BranchRecord,
    terms: PullRequestTerms,
    task: PullRequestTask,
    lines: Mapping[str, tuple[int, int]],
    *,
    closes: int | None,
    ready: bool,
    reopens: bool,
) -> PullRequestDraft:
    """The wanted content of the pull request.

    `lines`: the numbers of added and removed lines by path. `closes`: the issue that it closes. `ready`: it is to be
    ready for review. `reopens`: a new one is to be created even if one with this commit was closed.
    """
    facts = PullRequestFacts(
        name=task.task,
        task=task.text or record.branch,
        changes=[FileChange(path, *counts) for path, counts in sorted(lines.items())],
        checks=task.checks,
        cost_micro_dollars=task.cost_micro_usd,
        session_url=_session_url(terms.session_url, record.project, task.task),
        session_command=f"sandherd tasks get {task.task} --project {record.project}",
        ticket=record.ticket,
        closes=closes,
    )
    return PullRequestDraft(
        head=record.remote_branch,
        base=record.base,
        title=title_of(facts, terms.title),
        body=new_section(body_of(facts, terms.body)),
        commit=None if reopens else record.commit,
        draft=not ready,
        labels=terms.labels,
        reviewers=terms.reviewers,
    )


def _session_url(url: str | None, project: str, task: str) -> str | None:
    return url.replace("{project}", project).replace("{task}", task) if url else None


def _cost(task: TaskRecord) -> int | None:
    cost = task.result.get("cost_micro_usd")
    return cost if isinstance(cost, int) and cost >= 0 else None


def _checks(task: TaskRecord | None) -> tuple[tuple[str, bool], ...]:
    """The command that validates the task's work, if there is one. It has passed if the task completed."""
    validation = task.spec.continuous.validation if task and task.spec.continuous else None
    return ((validation.command, task.state.value == "completed"),) if task and validation else ()
