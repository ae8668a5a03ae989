"""Contents of files: which are new. Between two equal calls a new one means progress. Pure."""

import re
from typing import Any, Final

from monitor.facts import MAX_CONTENTS, Facts
from monitor.normalisation import text_digest
from sandherd.contracts.events.tools import AgentFileEdited

_GENERATED: Final = re.compile(
    r"(?:^|/)(?:__pycache__|node_modules|\.[a-z]+_cache|\.coverage|coverage|dist|build|target|out|logs?|tmp)(?:/|$)"
    r"|\.(?:log|tmp|pyc|out|pid|lock|cache)$|(?:^|/)(?:coverage|junit|report)[^/]*\.(?:xml|json|html)$"
)
"""Files that commands write, with other contents each time."""


def with_content(facts: Facts, data: AgentFileEdited) -> dict[str, Any]:
    """What the edit of a file changes in the facts. A content that a file has had lately is no new one."""
    if _GENERATED.search(data.file_path[-256:]):
        return {}
    content = text_digest(f"{data.file_path}\n{data.change_type == 'deleted'}\n{data.content_sha256}")
    if data.content_sha256 is None and data.change_type != "deleted":
        return {"new_contents": facts.new_contents + 1}
    if content in facts.contents:
        return {}
    return {"new_contents": facts.new_contents + 1, "contents": (*facts.contents, content)[-MAX_CONTENTS:]}
