"""Recognises documentation and generated files by their paths, and commands that restore files. Pure."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

_GENERATED_FOLDERS: Final = frozenset(
    {"node_modules", "dist", "build", "target", "out", "coverage", "htmlcov", "vendor", "__pycache__", "__snapshots__"}
    | {"log", "logs", "tmp"}
)
_LOCK_FILES: Final = frozenset({"package-lock.json", "pnpm-lock.yaml", "go.sum", "bun.lockb", "npm-shrinkwrap.json"})
_GENERATED_FILES: Final = re.compile(
    r".*\.(?:lock|log|out|tmp|bak|orig|rej|pid|map|snap|pyc|class|o|so|db|sqlite3?|cache|coverage|tsbuildinfo|egg-info)"
    r"|\.coverage|(?:coverage|junit|report).*\.(?:xml|json|html)|.*\.min\.(?:js|css)|.*(?:_pb2(?:_grpc)?\.pyi?|\.pb\.go|\.g\.dart|_generated\.\w+|\.generated\.\w+)"
)
_RESTORING_COMMAND: Final = re.compile(
    r"\bgit\b[^;&|\n]{0,100} (?:stash|checkout|restore|reset|switch|bisect|revert|rebase|apply)\b"
)
_MAX_COMMAND_LENGTH: Final = 2000
_DOCUMENT_SUFFIXES: Final = frozenset({".md", ".mdx", ".rst", ".adoc", ".txt", ".tex", ".org"})
_NO_DOCUMENT_PREFIXES: Final = ("requirements", "constraints", "CMakeLists", "robots")
_DOCUMENT_NAMES: Final = frozenset(
    {"LICENSE", "NOTICE", "AUTHORS", "CHANGELOG", "README", "CONTRIBUTING", "CODEOWNERS"}
)


def is_generated(path: str) -> bool:
    """Whether programs usually write this file: lock files, build output, caches, logs, reports, and hidden folders."""
    *folders, name = path.split("/")
    if name in _LOCK_FILES or any(folder in _GENERATED_FOLDERS or _is_hidden(folder) for folder in folders):
        return True
    return _GENERATED_FILES.fullmatch(name) is not None


def is_documentation(path: str) -> bool:
    """Whether this file is a text for readers, which no test or other check can be run on."""
    file = PurePosixPath(path)
    if file.name.startswith(_NO_DOCUMENT_PREFIXES):
        return False
    return file.suffix.lower() in _DOCUMENT_SUFFIXES or file.stem in _DOCUMENT_NAMES


def _is_hidden(folder: str) -> bool:
    return folder.startswith(".") and folder not in {".github", ".gitlab", ".circleci"}


def shell_command(tool_input: Mapping[str, Any]) -> str | None:
    """The beginning of the shell command that a call runs; None if it runs none.

    The `command` argument of a file tool does not count.
    """
    if "path" in tool_input:
        return None
    command = tool_input.get("command") or tool_input.get("cmd")
    if isinstance(command, list):
        command = " ".join(map(str, command[:40]))
    return command[:_MAX_COMMAND_LENGTH] if isinstance(command, str) else None


def restores_files(command: str | None) -> bool:
    """Whether a command restores files from git, which does not count as an edit."""
    return command is not None and "git" in command and _RESTORING_COMMAND.search(command) is not None
