"""The part of git's push protocol that the proxy implements (gitprotocol-pack(5), version 0 over HTTP). Pure.

Only what is needed to continue one branch is advertised. So git itself sends nothing else. What a hostile client sends
nevertheless is refused here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

FLUSH: Final = b"0000"
"""The flush packet, which ends a list of lines."""
LENGTH_BYTES: Final = 4
"""Bytes of the length at the beginning of a line."""
MAX_LINE_BYTES: Final = 65_520
MAX_COMMANDS: Final = 8
"""Maximum lines before the pack. Only one command is permitted. Others are read to refuse each by its name."""
NO_COMMIT: Final = "0" * 40
"""The commit of a ref that does not exist."""
HEADS: Final = "refs/heads/"
_LENGTH: Final = re.compile(rb"[0-9a-f]{4}")
_COMMAND: Final = re.compile(rb"([0-9a-f]{40}) ([0-9a-f]{40}) (refs/[\x21-\x7e]{1,400})")
_CAPABILITIES: Final = ("report-status", "ofs-delta", "object-format=sha1")
_IGNORED_CAPABILITIES: Final = ("agent=", "session-id=")
"""Prefixes of capabilities that describe the client. They are ignored."""
_MAX_REASON_CHARACTERS: Final = 400


class ProtocolError(Exception):
    """The request violates the protocol, or uses a capability that was not advertised. The user sees the text."""


@dataclass(frozen=True)
class RefUpdate:
    """A change of a ref that the client wants: from the commit `old` to `new`."""

    old: str
    new: str
    ref: str


@dataclass(frozen=True)
class PushCommands:
    """The refs that a push would change, and whether the client supports a report."""

    updates: tuple[RefUpdate, ...] = ()
    reports: bool = False


def pkt_line(content: bytes) -> bytes:
    """The content as one line of the protocol (pkt-line)."""
    return f"{len(content) + LENGTH_BYTES:04x}".encode() + content


def advertisement(branch: str, commit: str) -> bytes:
    """The only ref that can be pushed, with its commit, and the only capabilities."""
    capabilities = " ".join((*_CAPABILITIES, "agent=sandherd"))
    ref = pkt_line(f"{commit} {HEADS}{branch}\0{capabilities}\n".encode())
    return pkt_line(b"# service=git-receive-pack\n") + FLUSH + ref + FLUSH


def content_length(head: bytes) -> int:
    """The number of bytes after the four bytes of a line's length; 0 for a flush packet. Raises `ProtocolError`."""
    if head == FLUSH:
        return 0
    if not _LENGTH.fullmatch(head):
        raise ProtocolError("a line has no valid length")
    length = int(head, 16)
    if not LENGTH_BYTES < length <= MAX_LINE_BYTES:
        raise ProtocolError("a line has a length that is not permitted")
    return length - LENGTH_BYTES


def commands_of(lines: Sequence[bytes]) -> PushCommands:
    """The commands of the lines before the pack. Raises `ProtocolError`."""
    if not lines:
        return PushCommands()
    first, _, capabilities = lines[0].partition(b"\0")
    wanted = capabilities.decode("ascii", "replace").split()
    for name in wanted:
        if name not in _CAPABILITIES and not name.startswith(_IGNORED_CAPABILITIES):
            raise ProtocolError(f"{name[:40]!r} is not supported here")
    updates = tuple(_update(text) for text in (first, *lines[1:]))
    return PushCommands(updates, "report-status" in wanted)


def _update(text: bytes) -> RefUpdate:
    match = _COMMAND.fullmatch(text.removesuffix(b"\n"))
    if match is None:
        raise ProtocolError("a line is not a change of a ref: signed and shallow pushes are not supported here")
    old, new, ref = (part.decode("ascii") for part in match.groups())
    return RefUpdate(old, new, ref)


def refusals(pushed: PushCommands, branch: str, commit: str) -> Mapping[str, str]:
    """The reason why a push is refused, by ref. Empty if the push only continues the branch, which is at `commit`.

    A push is refused as a whole: none of its refs is changed.
    """
    reasons = {one.ref: _refusal(one, f"{HEADS}{branch}", commit) for one in pushed.updates}
    if not any(reasons.values()) and len(pushed.updates) > 1:
        reasons = dict.fromkeys(reasons, "a ref is named twice")
    if not any(reasons.values()):
        return {}
    return {ref: reason or "refused with the other refs" for ref, reason in reasons.items()}


def _refusal(update: RefUpdate, permitted_ref: str, commit: str) -> str:
    if update.ref != permitted_ref:
        return f"this sandbox may push {permitted_ref} only"
    if update.new == NO_COMMIT:
        return "the branch of a task can't be deleted here"
    if update.old != commit:
        return "fetch first: the branch has other commits by now"
    return ""


def report(pushed: PushCommands, refused: Mapping[str, str]) -> bytes:
    """The response to a push: for each ref, whether it was changed or why not. Empty if the client supports none."""
    if not pushed.reports:
        return b""
    lines = [pkt_line(b"unpack ok\n")]
    for update in pushed.updates:
        reason = refused.get(update.ref)
        result = f"ng {update.ref} {one_line(reason)}" if reason else f"ok {update.ref}"
        lines.append(pkt_line(f"{result}\n".encode()))
    return b"".join(lines) + FLUSH


def one_line(text: str) -> str:
    """The text as a part of one line, without characters that control a terminal."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:_MAX_REASON_CHARACTERS] or "refused"


def bundle_head(update: RefUpdate) -> bytes:
    """The header of a bundle (gitformat-bundle(5)). The pack of the push follows it."""
    return f"# v2 git bundle\n-{update.old}\n{update.new} {update.ref}\n\n".encode()
