"""The resume of a task: what it may contain."""

from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.contracts.resume import Resume
from sandherd.contracts.specs import TaskSpec

ARTIFACT = {"artifact": "art-1", "subject": "s", "size": 1, "sha256": "0" * 64, "chunks": 1}
HARNESSES: dict[str, dict[str, Any]] = {
    "command": {"kind": "command", "argv": ["true"]},
    "claude": {"kind": "claude"},
    "openhands": {"kind": "openhands"},
    "acp": {"kind": "acp", "argv": ["agent"]},
}


def resume(kind: str, **over: Any) -> dict[str, Any]:
    fields = {"task": "task-1", "attempt": 1, "sandbox": "sbx-1", "harness": kind, "session_id": "s-1"}
    return {**fields, "transcript": ARTIFACT, **over}


@pytest.mark.parametrize("kind", ["claude", "openhands", "acp"])
def test_session_is_resumed_by_its_own_kind_only(kind: str) -> None:
    """Every kind with a session accepts a session of its own kind only; the refusal names both kinds."""
    for other, harness in HARNESSES.items():
        spec = {"text": "go on", "harness": harness, "resume": resume(kind)}
        if other == kind:
            assert TaskSpec.model_validate(spec).resume == Resume.model_validate(resume(kind))
        else:
            with pytest.raises(ValidationError, match=f"resume: (a command has no|{other} can't.*{kind})"):
                TaskSpec.model_validate(spec)


@pytest.mark.parametrize(
    "over",
    [
        {"transcript": None},
        {"harness": "command"},
        {"session_id": ""},
        {"session_id": "s" * 257},
        {"session_id": "nul\0"},
        {"task": "a.b"},
        {"sandbox": "*"},
        {"attempt": 0},
        {"fork": "perhaps"},
        {"env": {}},
    ],
)
def test_invalid_session_is_refused(over: dict[str, Any]) -> None:
    """A missing transcript, a missing or invalid name, and an unknown field are refused."""
    with pytest.raises(ValidationError):
        Resume.model_validate(resume("claude", **over))


def test_session_of_self_storing_agent_needs_no_transcript() -> None:
    """The session of an ACP agent is its id alone."""
    assert Resume.model_validate(resume("acp", transcript=None)).transcript is None


def test_task_without_resume_omits_the_field() -> None:
    """The field `resume` is left out, so that a spawner that does not know it accepts the task."""
    spec = TaskSpec.model_validate({"text": "x", "harness": HARNESSES["claude"]})
    assert "resume" not in spec.model_dump()
    assert "resume" not in spec.model_dump_json()
