"""Recognises new contents of files. A new content between two equal calls means progress. Pure."""

from typing import Any

from monitor.facts import MAX_CONTENTS, Facts
from monitor.file_kinds import is_generated
from monitor.normalisation import text_digest
from sandherd.contracts.events.tools import AgentFileEdited


def content_changes(facts: Facts, data: AgentFileEdited) -> dict[str, Any]:
    """The fields of `Facts` that the edit of a file changes. A content that is still remembered is not new."""
    if is_generated(data.file_path):
        return {}
    content = text_digest(f"{data.file_path}\n{data.change_type == 'deleted'}\n{data.content_sha256}")
    if data.content_sha256 is None and data.change_type != "deleted":
        return {"new_contents": facts.new_contents + 1}
    if content in facts.contents:
        return {}
    return {"new_contents": facts.new_contents + 1, "contents": (*facts.contents, content)[-MAX_CONTENTS:]}
