"""The agent changes one file back and forth."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import Facts, Observation, ObservedEvent
from monitor.file_kinds import is_documentation, is_generated, restores_files, shell_command
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from monitor.seen_values import mark, remembered
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolUse

MAX_FILES: Final = 6
"""Number of files that are remembered: those that were edited last."""
_MAX_CONTENTS: Final = 8
"""Number of contents of a file that are remembered, and of changes from one content to another."""
_MAX_LINES: Final = 48
"""Number of added lines of a file that are remembered."""
_MAX_DIFF_LINES: Final = 400
_MAX_PATH_LENGTH: Final = 120
_EDITS_PER_RETURN: Final = 3
"""A return to an earlier content counts as this many reworked edits."""
_MAX_EVIDENCE: Final = 6
_COMMAND_SEPARATOR: Final = re.compile(r"[;&|\n]+")
_READING_COMMAND: Final = re.compile(
    r"\s*(?:sudo |time |then |do |\()*(?:cat|ls|head|tail|less|grep|rg|ag|sed|awk|find|wc|cd|pwd|echo|tree|diff|stat"
    r"|file|git|which|true|export|sleep|mkdir|cp|mv|rm|touch|chmod|printf|nl|cut|sort|uniq|fi|done|else)\b|\s*$"
)
"""Matches commands that only show or move files: these do not try out a change."""


class EditThrashThresholds(Thresholds):
    """The numbers of edits of one file that are a thrash."""

    edits: Annotated[int, Unit("edits"), Field(ge=2)] = 6
    """Number of edits of a file that each replace lines of an earlier one, without a check or a trial in between. A
    return of the file to an earlier content counts as three."""
    interrupt_at: Annotated[int, Unit("edits"), Field(ge=2)] = 12
    """At this number the agent is interrupted."""


@dataclass(frozen=True, slots=True)
class EditedFile:
    """One file: its last contents and added lines, as marks, and the counts."""

    name: str = ""
    """The mark of its path."""
    contents: str = ""
    transitions: str = ""
    """The marks of changes from one content to another."""
    lines: str = ""
    reworked: int = 0
    """Number of edits without a check that replace lines of an earlier edit, plus one for that earlier edit."""
    returns: int = 0
    """Number of returns to an earlier content."""
    since: datetime | None = None
    began: int = 0
    evidence: tuple[UUID, ...] = ()

    @property
    def count(self) -> int:
        """The number of edits that count: the larger one of both counts."""
        return max(self.reworked, _EDITS_PER_RETURN * self.returns)


@dataclass(frozen=True, slots=True)
class EditedFiles:
    """The files that were edited last, and the path of the most recent one."""

    files: tuple[EditedFile, ...] = ()
    path: str = ""
    last: EditedFile = field(default_factory=EditedFile)
    restores: bool = False
    """Whether the last call restores files: changes until the next call don't count as edits."""


@dataclass(frozen=True)
class EditThrash(GuardianRule[EditedFiles, EditThrashThresholds]):
    """The content of a file returns to earlier ones, or its lines are replaced repeatedly without a check."""

    name = "edit_thrash"
    order = 210
    thresholds = EditThrashThresholds
    part = EditedFiles
    reads = (AgentFileEdited, AgentToolUse)
    folds_calls = True
    steps = MappingProxyType({"nudge": "edits", "interrupt": "interrupt_at"})
    documentation = Documentation(
        condition="a file returns to an earlier content twice without a check in between, or once by a change that was "
        "made before; or `edits` edits of a file each replace lines of an earlier edit, without a check or a trial in "
        "between. Every command is a trial, unless it only shows or moves files",
        avoids="lock files, build output, caches and hidden folders are ignored, because formatters and other "
        "programs write them. Not found are a file that grows by many edits, changes that the agent tries out, also "
        "with the project's own programs, and a change that is made for one trial and undone. Repeated edits of "
        "documentation do not count, because no check can be run on it",
        source="our proposal, no other system has the rule. 5.4 % of recorded sessions look like it, and 0.4 % have it",
    )

    def fold(self, part: EditedFiles, observation: Observation, _facts: Facts) -> EditedFiles:
        """Count an edit. A check or a trial begins the count again."""
        data = observation.event.data
        if observation.call is not None:
            return _after_check(part) if observation.call.check is not None else part
        if isinstance(data, AgentToolUse):
            return _with_command(part, data) if part.files else part
        if not isinstance(data, AgentFileEdited) or data.binary or is_generated(data.file_path):
            return part
        return _with_edit(part, observation.event, data)

    def pattern(self, part: EditedFiles) -> Pattern | None:
        """The edits of the last file, even below the threshold."""
        last = part.last
        if last.since is None:
            return None
        summary = f"{part.path}: {last.reworked} edits of the same lines without a check; {last.returns} returns to an "
        summary += "earlier content"
        return Pattern(self.name, last.name, last.since, last.began, last.count, summary, last.evidence)

    def evaluate(
        self, part: EditedFiles, _facts: Facts, _now: datetime, thresholds: EditThrashThresholds
    ) -> Pattern | None:
        """The edits of the last file, if there are enough."""
        return self.pattern(part) if part.last.count >= thresholds.edits else None

    def steering_text(self, part: EditedFiles) -> str:
        """The message: what the agent does, and what to do instead."""
        return (
            f"You change the same lines of {part.path!r} again and again, or restore what it was before. Stop editing "
            "it. Run a check that shows what is wrong, read its output, decide on one version, and make that change "
            "once."
        )

    def is_repeated(self, key: str, part: EditedFiles, observation: Observation) -> bool | None:
        """Another edit that reworks that file shows the pattern; a check does not."""
        if part.last.name == key and part.last.count == 0:
            return False
        is_edit = isinstance(observation.event.data, AgentFileEdited) and part.last.name == key
        return True if is_edit else None

    def ignored_after(self, thresholds: EditThrashThresholds) -> int:
        """Half of the number of edits that is a thrash."""
        return max(1, thresholds.edits // 2)


def _after_check(part: EditedFiles) -> EditedFiles:
    """The part after a check or a trial, with all counts reset.

    The changes from one content to another stay known: if one is made again, it counts as two returns.
    """
    if part.last.count == 0 and all(edited_file.count == 0 for edited_file in part.files):
        return part
    files = tuple(_without_count(edited_file) for edited_file in part.files)
    return replace(part, files=files, last=_without_count(part.last))


def _without_count(edited_file: EditedFile) -> EditedFile:
    return (
        replace(edited_file, reworked=0, returns=0, since=None, began=0, evidence=())
        if edited_file.count
        else edited_file
    )


def _with_edit(part: EditedFiles, event: ObservedEvent, data: AgentFileEdited) -> EditedFiles:
    name = mark(data.file_path)
    earlier = next((edited_file for edited_file in part.files if edited_file.name == name), EditedFile(name))
    added, removed = _line_marks(data.full_diff or data.diff_preview)
    is_rework = any(line in earlier.lines for line in removed) and not is_documentation(data.file_path)
    lines = earlier.lines
    for line in added:
        lines = remembered(lines, line, _MAX_LINES)
    edited = replace(_with_content(earlier, data, counted=not part.restores), lines=lines)
    if is_rework and not part.restores:
        edited = replace(edited, reworked=max(earlier.reworked, 1) + 1)
    if edited.count:
        ids = (event.id,) if event.id else ()
        evidence = (*edited.evidence, *ids)[-_MAX_EVIDENCE:]
        edited = replace(edited, since=edited.since or event.at, began=edited.began or event.number, evidence=evidence)
    others = tuple(edited_file for edited_file in part.files if edited_file.name != name)
    path = "".join(character if character.isprintable() else "?" for character in data.file_path[:_MAX_PATH_LENGTH])
    return EditedFiles((*others, edited)[-MAX_FILES:], path, edited, part.restores)


def _with_content(edited_file: EditedFile, data: AgentFileEdited, *, counted: bool) -> EditedFile:
    """The file with its new content. If `counted`, a return to an earlier content is counted.

    If the same change was made before, the return counts as the second one or a later one.
    """
    if data.content_sha256 is None:
        return edited_file
    new_mark = mark(data.content_sha256)
    last_mark = edited_file.contents[-len(new_mark) :]
    if new_mark == last_mark:
        return edited_file
    change = mark(last_mark + new_mark)
    is_known_change = change in edited_file.transitions
    is_return = counted and new_mark in edited_file.contents
    returns = max(edited_file.returns, 1 if is_known_change else 0) + 1 if is_return else edited_file.returns
    contents = edited_file.contents.replace(new_mark, "") + new_mark  # in the order in which they last occurred
    transitions = remembered(edited_file.transitions, change, _MAX_CONTENTS)
    return replace(
        edited_file, contents=contents[-_MAX_CONTENTS * len(new_mark) :], transitions=transitions, returns=returns
    )


def _line_marks(diff: str) -> tuple[list[str], list[str]]:
    """The marks of the lines that a diff adds, and of the lines that it removes. Lines that it moves are in neither."""
    added: dict[str, None] = {}
    removed: dict[str, None] = {}
    for line in islice(_diff_lines(diff), _MAX_DIFF_LINES):
        text = line[1:].strip()
        if len(text) < 4 or line.startswith(("+++", "---")):
            continue
        if line[0] == "+":
            added[mark(text)] = None
        elif line[0] == "-":
            removed[mark(text)] = None
    return [line_mark for line_mark in added if line_mark not in removed], [
        line_mark for line_mark in removed if line_mark not in added
    ]


def _diff_lines(diff: str) -> Iterable[str]:
    return diff.split("\n", _MAX_DIFF_LINES)


def _with_command(part: EditedFiles, data: AgentToolUse) -> EditedFiles:
    """The part after a command has begun, which may try out the changes, or restore files."""
    command = shell_command(data.input)
    restores = restores_files(command)
    if restores != part.restores:
        part = replace(part, restores=restores)
    if command is None or not any(edited_file.reworked or edited_file.returns for edited_file in part.files):
        return part
    is_trial = any(_READING_COMMAND.match(piece) is None for piece in _COMMAND_SEPARATOR.split(command, 40))
    return _after_check(part) if is_trial else part


RULE: Final = EditThrash()
