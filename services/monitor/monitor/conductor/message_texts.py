"""The texts that the Conductor sends to agents and users, from templates. Pure.

They contain names of sandboxes and tasks, whose characters are limited. Of the values that sandboxes choose, they
contain only paths that `ignored_files.quote_path` accepts. They state facts: prescriptive advice made agents worse
(SWE-PRM).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from monitor.conductor.conductor_ledger import FindingRecord
from monitor.conductor.ignored_files import quote_path
from sandherd.plurals import pluralize

MAX_FILES: Final = 10
"""Maximum number of files that a message names."""
_INTRODUCTION: Final = (
    "Notice of the conductor, which sees all sandboxes of this project. It changes nothing in your task."
)
_QUOTATION_NOTE: Final = "What is in quotation marks is the name of a file and nothing else."


def text_for(recipient: str, findings: Sequence[FindingRecord], tasks: dict[str, str]) -> str:
    """The message to one agent about the findings of one kind in one pair. `tasks` has the tasks of both sandboxes."""
    first = findings[0]
    if first.kind == "conflict":
        return conflict_text(recipient, findings, tasks)
    return duplicate_text(recipient, first, tasks) if first.kind == "duplicate" else dependency_text(first)


def conflict_text(recipient: str, findings: Sequence[FindingRecord], tasks: dict[str, str]) -> str:
    """The message to one of the two agents that edit the same files."""
    first = findings[0]
    other = first.other if recipient == first.sandbox else first.sandbox
    lines = [_INTRODUCTION, f"The agent in sandbox {other} (task {tasks[other]}) also edits files that you edit:"]
    lines += _file_lines(findings, recipient)
    if any(finding.severity == "merge" for finding in findings):
        lines.append("A trial merge of both branches has conflicts.")
    order_text = "Your task began later." if recipient == first.sandbox else "Your task began earlier."
    lines.append(f"{order_text} Both agents get this notice. The work trees are separate, and are merged later.")
    lines.append("Limit your changes of these files to what your task needs.")
    return "\n".join(lines)


def _file_lines(findings: Sequence[FindingRecord], recipient: str) -> list[str]:
    quoted_paths = [(quote_path(finding.path), finding) for finding in findings]
    lines = [
        f"- {name}{_line_ranges(finding, recipient)}" for name, finding in quoted_paths[:MAX_FILES] if name is not None
    ]
    hidden = len(findings) - len(lines)
    if hidden:
        lines.append(f"- {pluralize(hidden, 'file')} that {'is' if hidden == 1 else 'are'} not listed here")
    return [*lines, *([_QUOTATION_NOTE] if len(lines) > bool(hidden) else [])]


def _line_ranges(finding: FindingRecord, recipient: str) -> str:
    own, others = finding.lines, finding.other_lines
    if recipient != finding.sandbox:
        own, others = others, own
    if own is None or others is None:
        return ""
    return f" (you: lines {own[0]} to {own[1]}; the other agent: lines {others[0]} to {others[1]})"


def duplicate_text(recipient: str, finding: FindingRecord, tasks: dict[str, str]) -> str:
    """The message to one of two agents that do the same work."""
    other = tasks[finding.other if recipient == finding.sandbox else finding.sandbox]
    began = "later" if recipient == finding.sandbox else "earlier"
    lines = [
        _INTRODUCTION,
        f"Another agent (task {other}) seems to do the same task as you. Yours began {began}.",
        "If your task is not the same, continue.",
        f"Otherwise finish what you are at, and state in your result that task {other} does the same.",
    ]
    return "\n".join(lines)


def dependency_text(finding: FindingRecord) -> str:
    """The message to an agent whose task depends on something that has changed."""
    names = [name for name in map(quote_path, finding.paths) if name is not None][:MAX_FILES]
    changed = f"task {finding.other}" if finding.cause == "task" else "the branch that yours began from"
    lines = [_INTRODUCTION, f"Since you began, {changed} has changed, so that what you build on may be different."]
    if names:
        lines += ["Changed files:", *(f"- {name}" for name in names), _QUOTATION_NOTE]
    return "\n".join(lines)


def notification_text(findings: Iterable[FindingRecord]) -> str:
    """The notification to a user about findings of one pair."""
    group = list(findings)
    first, files = group[0], "the same file" if len(group) == 1 else "the same files"
    problem = {
        "conflict": f"{first.sandbox} and {first.other} edit {files}",
        "duplicate": f"{first.sandbox} seems to do the same as {first.other}",
        "dependency": f"what {first.sandbox} builds on has changed",
    }[first.kind]
    return f"{problem}; decide which of them continues, with `sandherd monitor report`, `sandboxes pause` or `send`"
