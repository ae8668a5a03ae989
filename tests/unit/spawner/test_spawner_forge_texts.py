"""Titles and bodies of pull requests: no text of a task has an effect on a forge."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandherd.contracts.pull_requests import check_template
from spawner.forges.pull_request_markdown import code_block, code_span, escaped_title
from spawner.forges.pull_request_text import (
    MAX_TITLE,
    FileChange,
    PullRequestFacts,
    body_of,
    title_of,
)

HOSTILE = st.text(st.sampled_from("@#!&/`~$<>[]()*_-: \n\t\r\x00\u200b\u202eabx159") | st.characters(), max_size=60)
FRAGMENTS = st.lists(
    st.sampled_from([
        "@bob", "closes", "Fixes", "#1", "GH-7", "!5", "\n/merge", "https://github.com/a/b/issues/3", "```", "~~~", "`",
        "<b>", "<!--", "-->", "[skip ci]", "\nSigned-off-by: x", "$cost", " ", "\n", "SHOP-1", ":", "\u200b",
    ]),
    max_size=12,
).map("".join)  # fmt: skip
EFFECTS = re.compile(
    r"@\w|[#!&]\d|\bGH-\d|/(?:issues|pulls?|merge_requests)/\d|(?m:^[ \t]*/\w)"
    r"|\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[:\s]+[A-Z]+-\d|\[skip ci\]|(?m:^Signed-off-by:)",
    re.IGNORECASE,
)
"""What forges act on, in texts and in messages of commits."""


def code_of(body: str) -> tuple[str, str]:
    """The code of a body in Markdown (CommonMark 4.5, 6.1), and the rest."""
    fences = re.compile(r"^(`{3,})text\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
    spans = re.compile(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)")
    code = [match[2] for match in fences.finditer(body)]
    rest = fences.sub("", body)
    return "\n".join([*code, *(match[2] for match in spans.finditer(rest))]), spans.sub("", rest)


@settings(max_examples=300, deadline=None)
@given(text=HOSTILE | FRAGMENTS)
@example("Closes #5")
@example("````\n@bob\n````")
@example("`@bob`")
@example("/merge\n\t/approve")
@example("fixes SHOP-12, closes: https://github.com/team/shop/issues/9")
def test_task_text_has_no_effect(text: str) -> None:
    """The title and body have no mention, reference, command or trailer, and all text in the body is code."""
    facts = PullRequestFacts("task-1", text, [FileChange(text, 1, 2)], [(text, True)], 1_234_567, "https://s/1")
    title, body = title_of(facts), body_of(facts)
    assert not EFFECTS.search(title)
    assert not EFFECTS.search(body)
    assert "\n" not in title
    assert 0 < len(title) <= MAX_TITLE
    _, rest = code_of(body)
    empty = body_of(PullRequestFacts("task-1", "", [FileChange("", 1, 2)], [("", True)], 1_234_567, "https://s/1"))
    assert rest.replace("–", "") == code_of(empty)[1].replace("–", "")


def test_readable_text_is_unchanged() -> None:
    """Text without effect is not escaped."""
    text = (
        "Fix the parser: it fails for a < b && c, see docs/parser.md (50% of cases, e-mail excluded).\n\n- one\n- two"
    )
    assert text in code_block(text, 1000)
    assert escaped_title(text, 200) == text.splitlines()[0]
    assert code_span("src/a`b.py", 100) == "``src/a`b.py``"


@pytest.mark.parametrize("prefix", ["Draft: ", "WIP:", "[draft] ", "(Draft) ", "draft: wip: ", "fixup! ", "\n\n  "])
def test_title_makes_no_draft(prefix: str) -> None:
    """GitLab and Gitea make a draft because of a title, and refuse to merge `fixup!`."""
    assert title_of(PullRequestFacts("task-1", f"{prefix}Add sums\nand more")) == "Add sums"
    assert title_of(PullRequestFacts("task-1", "Draft the release notes")) == "Draft the release notes"


def test_body_has_the_task_changes_checks_cost_and_session() -> None:
    """The number of rows is limited, and the number of omitted rows is shown."""
    changes = [FileChange("a.py", 3, 1), FileChange("logo.png"), *[FileChange("x")] * 200]
    facts = PullRequestFacts(
        "task-1", "Add sums", changes, [("tests", True), ("lint", False)], 1_500_000, "https://s/1", closes=7
    )
    body = body_of(facts)
    parts = [
        "Add sums", "- `a.py` (+3, -1)", "- `logo.png`\n", "- … and 102 more", "- `tests`: passed", "- `lint`: failed",
        "cost: 1.5000 USD", "[Session](https://s/1)", "\nCloses #7\n", "Task `task-1`",
    ]  # fmt: skip
    assert [part for part in parts if part not in body] == []
    assert "Closes" not in body_of(PullRequestFacts("task-1", "Add sums"))


def test_long_task_is_cut() -> None:
    """The body is shorter than GitHub's 65,536 characters, even if every character is escaped."""
    facts = PullRequestFacts("t", "@a" * 100_000, [FileChange("@a" * 500, 1, 1)] * 500, [("@a" * 500, True)] * 500)
    template = f"$task $changes $checks {'x' * 9_900}"
    check_template(template)
    assert len(body_of(facts, template)) < 65_536
    assert len(title_of(facts)) <= MAX_TITLE


def test_template_of_an_operator() -> None:
    """Its placeholders are checked. A placeholder in a task's text has no effect."""
    check_template("$task by $name: $$5")
    for wrong in ("$secret", "${task", "x" * 20_000):
        with pytest.raises(ValueError):  # noqa: PT011  # its text is for operators
            check_template(wrong)
    assert "$cost" in body_of(PullRequestFacts("t", "$cost ${name}"), "$task")
    assert title_of(PullRequestFacts("t", "Add $cost", ticket="SHOP-1"), "[$ticket] $title") == "[SHOP-1] Add $cost"


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://s/1\n@bob", "data:text/html,x", ""])
def test_session_link_is_by_http(url: str) -> None:
    """A link with another scheme is left out."""
    assert "(" not in body_of(PullRequestFacts("t", "x", session_url=url), "$session")
