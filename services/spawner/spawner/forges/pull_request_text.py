"""The title and body of a pull request, from a template of the operator. Pure.

Texts of the task, the agent and the repository are escaped, in the title as text, in the body as code. So they notify
no user, close no issue, and are not HTML. Only `PullRequestFacts.closes` adds `Closes #N`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Final
from urllib.parse import quote, urlsplit

from spawner.forges.pull_request_markdown import code_block, code_span, escaped_title

MAX_TITLE: Final = 200
"""Maximum characters of a title. GitHub permits 256; GitLab permits 255 with its draft prefix."""
_MAX_TASK_CHARACTERS: Final = 10_000
_MAX_CHANGES: Final = 100
_MAX_CHECKS: Final = 50
_MAX_NAME_CHARACTERS: Final = 120
DEFAULT_TITLE: Final = "$title"
DEFAULT_BODY: Final = """\
$task

### Changes

$changes

### Checks

$checks

$closes

---

Task $name, cost: $cost. $session
"""


@dataclass(frozen=True)
class FileChange:
    """A changed file, with the numbers of added and removed lines; None for a binary file."""

    path: str
    added: int | None = None
    removed: int | None = None


@dataclass(frozen=True)
class PullRequestFacts:
    """The values for a template. `checks`: the name of each check of the task, and whether it has passed.

    `closes`: the number of an existing issue (`Forge.issue_exists`).
    """

    name: str
    task: str
    changes: Sequence[FileChange] = ()
    checks: Sequence[tuple[str, bool]] = ()
    cost_micro_dollars: int | None = None
    session_url: str | None = None
    session_command: str = ""
    """The command that shows the task. It is used if there is no page of the task."""
    ticket: str | None = None
    closes: int | None = None


def title_of(facts: PullRequestFacts, template: str = DEFAULT_TITLE) -> str:
    """The title: one escaped line of at most `MAX_TITLE` characters."""
    short = escaped_title(facts.task, MAX_TITLE) or escaped_title(facts.name, MAX_TITLE)
    ticket = escaped_title(facts.ticket or "", _MAX_NAME_CHARACTERS)
    title = Template(template).safe_substitute(
        title=short, name=escaped_title(facts.name, _MAX_NAME_CHARACTERS), ticket=ticket
    )
    return escaped_title(title, MAX_TITLE)


def body_of(facts: PullRequestFacts, template: str = DEFAULT_BODY) -> str:
    """The body as Markdown. With the default template it is shorter than GitHub's limit of 65,536 characters."""
    return Template(template).safe_substitute(
        title=code_span(facts.task, MAX_TITLE),
        name=code_span(facts.name, _MAX_NAME_CHARACTERS),
        ticket=code_span(facts.ticket or "", _MAX_NAME_CHARACTERS),
        task=code_block(facts.task, _MAX_TASK_CHARACTERS),
        changes=_rows([_change(change) for change in facts.changes[:_MAX_CHANGES]], len(facts.changes), "No changes."),
        checks=_rows([_check(*check) for check in facts.checks[:_MAX_CHECKS]], len(facts.checks), "No checks."),
        cost="unknown" if facts.cost_micro_dollars is None else f"{facts.cost_micro_dollars / 1_000_000:,.4f} USD",
        session=_link(facts.session_url) or _command(facts.session_command),
        closes=f"Closes #{facts.closes}" if facts.closes is not None and facts.closes > 0 else "",
    )


def _rows(rows: Sequence[str], count: int, empty_text: str) -> str:
    more = [f"- … and {count - len(rows)} more"] if count > len(rows) else []
    return "\n".join([*rows, *more]) or empty_text


def _change(change: FileChange) -> str:
    lines = "" if change.added is None or change.removed is None else f" (+{change.added}, -{change.removed})"
    return f"- {code_span(change.path, _MAX_NAME_CHARACTERS)}{lines}"


def _check(name: str, passed: bool) -> str:  # noqa: FBT001  # a pair in `PullRequestFacts.checks`
    return f"- {code_span(name, _MAX_NAME_CHARACTERS)}: {'passed' if passed else 'failed'}"


def _command(command: str) -> str:
    return code_span(command, _MAX_NAME_CHARACTERS) if command else ""


def _link(url: str | None) -> str:
    """A link to the session; empty unless it is an HTTP URL. Its path may contain a name that a user chose."""
    if url is None or urlsplit(url).scheme not in {"http", "https"} or not url.isprintable():
        return ""
    return f"[Session]({quote(url, safe=':/?=&;+,%~@#[]')})"
