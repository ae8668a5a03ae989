"""Artifacts on a terminal, and the references in events that a sandbox has written."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.cli import artifact_output
from sandherd.client import HerdError
from sandherd.client.artifacts import EventArtifact
from sandherd.contracts.artifact_references import artifact_references
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.tools import AgentToolUse
from sandherd.contracts.names import created_at, new_name
from tests.unit.client.test_client_artifact import reference

INVENTED = {"artifact": "art-2", "subject": "s", "size": 1, "sha256": "0" * 64, "chunks": 1}


def described(found: ArtifactRef) -> EventArtifact:
    return EventArtifact(
        name=found.artifact,
        kind="text/plain",
        size=found.size,
        event="agent.tool_use",
        field="input.command",
        entity="sbx-1",
        time=datetime(2026, 11, 20, tzinfo=UTC),
        reference=found,
    )


@pytest.mark.parametrize("content", [b"\xff\xfe", b"text\0", "text".encode("utf-16")])
def test_terminal_gets_no_binary_content(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the option that writes it to a file."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(HerdError, match="is not text") as caught:
        artifact_output._show(described(reference()), io.BytesIO(content))
    assert "-o FILE" in caught.value.line


def test_terminal_gets_text_without_controls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text of a sandbox can neither clear the screen nor change its title; its letters are complete."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    artifact_output._show(described(reference()), io.BytesIO("ä\x1b[2J\x1b]0;title\x07 end".encode()))
    assert capsys.readouterr().out == "ä␛[2J␛]0;title␇ end\n"


def test_only_declared_fields_have_references() -> None:
    """An agent may write something that looks like a reference into what its tools are given."""
    data: Any = {"tool_use_id": "t", "tool": "Bash", "input": {"artifacts": {"x": INVENTED}, "work": INVENTED}}
    event = AgentToolUse.model_validate(data | {"artifacts": {"input.content": reference().model_dump()}})
    assert [(field, found.artifact) for field, found in artifact_references(event)] == [("input.content", "art-1")]


def test_generated_name_has_its_time() -> None:
    """To the millisecond; a name that was not generated has none."""
    at = created_at(new_name("art"))
    assert at is not None
    assert abs(datetime.now(UTC) - at) < timedelta(days=1)
    assert [created_at(name) for name in ("art-one", "", f"art-{'z' * 26}", f"art-{'0' * 26}")] == [None] * 4
