"""What is found about tool calls in their inputs and results: checks and outages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.events.tools import AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.shell.programs import MAX_CHARS, MAX_PROGRAMS, programs_of
from sandherd_worker.calls.annotations import MAX_CALLS, CallAnnotations
from sandherd_worker.calls.checks import check_of
from sandherd_worker.calls.outages import is_outage, may_be_outage


def kind(command: Any) -> str | None:
    check = check_of({"command": command})
    return None if check is None else check.kind


def passed(command: str, outcome: Any, exit_code: int | None) -> bool | None:
    check = check_of({"command": command})
    assert check is not None, command
    return check.passed(outcome, exit_code)


CHECKS = {
    "test": (
        *(
            "pytest -q",
            "python3.11 -m unittest discover",
            "coverage run -m pytest",
            "tox -e py311",
            ".venv/bin/pytest x",
        ),
        *(
            "npm test",
            "npm run test:unit -- --watch=false",
            "yarn test",
            "pnpm --filter app test",
            "npx jest",
            "bun test",
        ),
        *("cargo test", "cargo +nightly nextest run", "go test ./... -run X", "make check", "make -C sub -j4 test"),
        *("./gradlew :app:testDebugUnitTest", "mvn -q verify", "dotnet test", "ctest --test-dir build"),
        *(
            "cd x && env A=b uv run --with y python -m pytest",
            "sudo -u me timeout -k 5 60 pytest",
            "bash -lc 'cargo test'",
        ),
        *("set -e\npytest\n", "(cd a && pytest)", "ruff check . && mypy . && pytest", "python manage.py test"),
    ),
    "lint": ("ruff check .", "npx eslint src", "cargo clippy", "black --check .", "cargo fmt --check", "npm run lint"),
    "types": ("mypy .", "npx -y tsc --noEmit", "cargo check", "make typecheck", "npm run type-check", "uvx ty check"),
    "build": (
        "make",
        "make all",
        "cargo build",
        "cargo test --no-run",
        "npm run build",
        "gradle assemble",
        "python -m build",
    ),
}


@pytest.mark.parametrize("wanted", CHECKS)
def test_check_is_found_by_its_arguments(wanted: str) -> None:
    """A check is found after other commands, variables and launchers; of several checks, the strongest counts."""
    assert {command: kind(command) for command in CHECKS[wanted]} == dict.fromkeys(CHECKS[wanted], wanted)


def test_other_commands_are_no_checks() -> None:
    """Names of checks in arguments or in text for a file, and programs that only format, are not checks."""
    others = (
        *(
            "echo pytest",
            "grep -r pytest .",
            "git commit -m 'pytest && x'",
            "# pytest\nls",
            "cat > t.sh <<'EOF'\npytest\nEOF",
        ),
        *(
            "black .",
            "ruff format",
            "npm run format",
            "npm ci",
            "npm install test",
            "make clean",
            "cargo run",
            "go mod tidy",
        ),
        *(
            "pytest --version",
            "mypy --help",
            "pytest --collect-only",
            "echo 'no end",
            "python -c 'import pytest'",
            "",
            "uv run",
        ),
    )
    assert {command: kind(command) for command in others} == dict.fromkeys(others)
    assert [kind(command) for command in (["pytest", "-q"], ["bash", "-lc", "mypy ."], ["pytest", 5], 5, {"a": 1})] == [
        *("test", "types", None, None, None)
    ]
    assert check_of({"command": "view", "path": "pytest"}) is None


@pytest.mark.parametrize(
    ("command", "after_ok", "after_failure"),
    [
        ("pytest", True, False),
        ("cd x && pytest;\n", True, False),
        ("pytest && git commit -m x", True, None),
        ("npm ci && npm test", True, None),
        ("pytest | tail -5", None, None),
        ("pytest; echo $?", None, None),
        ("pytest || true", None, None),
        ("true || pytest", None, None),
        ("! pytest", None, None),
        ("pytest &", None, None),
        ("if pytest; then echo yes; fi", None, None),
        ("bash -c 'pytest | tail'", None, None),
    ],
)
def test_check_passed_only_if_the_status_shows_it(command: str, after_ok: Any, after_failure: Any) -> None:
    """The status of a command is that of its last program; without one, or after a time-out, nothing is known."""
    assert (passed(command, "ok", 0), passed(command, "failed", 1)) == (after_ok, after_failure)
    unknown = [passed(command, "ok", None), passed(command, "failed", None), passed(command, "timed_out", 124)]
    assert unknown == [None] * 3


@given(st.text(alphabet="ab \"'\\\n;|&()<>$`#={}!-", max_size=200))
def test_any_text_is_parsed(command: str) -> None:
    """The parser returns programs for any text."""
    assert all(program.argv for program in programs_of({"command": command}))


def test_parsing_is_limited() -> None:
    """The length of a command, the number of its programs, and the depth of shells within shells are limited."""
    assert programs_of({"command": "pytest " + "x" * MAX_CHARS}) == []
    assert len(programs_of({"command": "a;" * MAX_PROGRAMS})) == MAX_PROGRAMS
    assert programs_of({"command": "a;" * (MAX_PROGRAMS + 1)}) == []
    nested = "pytest"
    for _ in range(5):
        nested = f"bash -c {nested!r}" if "'" not in nested else f'bash -c "{nested}"'
    assert len(programs_of({"argv": ["x"] * (MAX_CHARS + 1)})) == 0
    assert programs_of({"argv": ["env"] * 100 + ["pytest"]})[0].name == "env"


@pytest.mark.parametrize(
    ("command", "fetches"),
    [
        ("cd x && pip install y", True),
        ("uv run --with a python -m pip install y", True),
        ("curl -s https://example.org/a", True),
        ("curl http://localhost:8000/", False),
        ("git push origin main", True),
        ("git status", False),
        ("pytest tests", False),
    ],
)
def test_only_calls_that_fetch_may_be_outages(command: str, fetches: bool) -> None:
    """Calls that fetch nothing from outside of the sandbox, such as tests, are never outages."""
    assert may_be_outage("Bash", {"command": command}) is fetches
    assert may_be_outage("WebFetch", {})
    assert may_be_outage("mcp__tracker__search", {"command": command})


@pytest.mark.parametrize(
    ("text", "outage"),
    [
        ("Exit code 6\ncurl: (6) Could not resolve host: example.org", True),
        ("ERROR: HTTP error 503 while getting https://example.org/x", True),
        ("npm error code ECONNRESET", True),
        ("Request failed with status code 429", True),
        ("fatal: unable to access: The requested URL returned error: 502", True),
        ("ERROR: No matching distribution found for nonesuch", False),
        ("npm error code E404", False),
        ("429 tests passed, 500 skipped", False),
        ("ECONNRESET" + " " * 5000, False),
    ],
)
def test_outage_is_found_by_documented_texts(text: str, outage: bool) -> None:
    """Statuses of servers and network errors are outages; a missing package is not."""
    assert is_outage(text) is outage


def use(call: str, command: str) -> AgentToolUse:
    return AgentToolUse(tool="Bash", tool_use_id=call, input={"command": command})


def end(call: str, text: str, **fields: Any) -> list[Any]:
    fields = {"outcome": "failed", "exit_code": 1, **fields}
    return [
        AgentToolCompleted(tool="Bash", tool_use_id=call, tool_response=text, **fields),
        AgentToolResult(tool_use_id=call, result=text, **fields),
    ]


def test_facts_are_added_to_all_events_of_a_call() -> None:
    """The event of a call and both events of its end get facts, which replace the agent's. Others are unchanged."""
    calls = CallAnnotations()
    begun: Any = calls.annotate(use("t1", "cd x && pytest").model_copy(update={"check": "lint"}))
    ends: list[Any] = [calls.annotate(event) for event in end("t1", "1 failed")]
    assert begun.check == "test"
    assert [(one.check, one.check_passed, one.outcome) for one in ends] == [("test", False, "failed")] * 2
    calls.annotate(use("t2", "pip install x"))
    completed, result = end("t2", "npm error code ETIMEDOUT")
    blank = completed.model_copy(update={"tool_response": {"exit_code": 1}})
    later: list[Any] = [calls.annotate(event) for event in (result, blank)]
    assert [one.outcome for one in later] == ["outage", "outage"]
    unknown = end("t9", "x")[0]
    assert calls.annotate(unknown) == unknown


def test_remembered_calls_are_limited() -> None:
    """Calls that never end take limited memory; the end of a call beyond the limit gets no facts."""
    calls = CallAnnotations()
    for number in range(MAX_CALLS + 1):
        calls.annotate(use(f"t{number}", "pytest"))
    ends: list[Any] = [calls.annotate(end(name, "")[0]) for name in ("t0", "t1")]
    assert [one.check for one in ends] == [None, "test"]
