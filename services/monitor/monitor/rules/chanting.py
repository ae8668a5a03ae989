"""The model repeats one text within a message or thought."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from sandherd.contracts.events.conversation import AgentMessage, AgentThinking

MAX_CHARS: Final = 16_000
"""Number of characters at the end of a text that are examined."""
BLOCK: Final = 20
"""Minimum number of characters of a block. A block is a sentence or line whose repetitions are counted."""
_CODE_BLOCK: Final = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_IGNORED_LINE: Final = re.compile(r"(?:[ \t]*(?:[|#>+]|[-*•][ \t]|\d{1,3}[.)][ \t]|[^\w\s]*\Z)|\t| {4})")
"""Matches the beginning of lines that are ignored: of tables, headings, lists, quotations, rulers and indented code."""
_SENTENCE_END: Final = re.compile(r"[.!?…]\s+")
_MIN_REMEMBERED: Final = 3
"""Minimum number of repetitions that are remembered; also the minimum of the threshold."""
_MIN_LETTERS: Final = 5
"""Minimum number of different characters of a block, so that a line of dashes is not one."""


class ChantingThresholds(Thresholds):
    """When a repeated text is a chant."""

    repeats: Annotated[int, Unit("repeats"), Field(ge=_MIN_REMEMBERED)] = 10
    """How often one text of at least 20 characters is in one message or thought."""


@dataclass(frozen=True, slots=True)
class Chant:
    """How often the last message or thought repeats a text; 0: not often enough to be remembered."""

    count: int = 0
    since: datetime | None = None
    began: int = 0
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class Chanting(GuardianRule[Chant, ChantingThresholds]):
    """The agent repeats one text within a message or thought."""

    name = "chanting"
    order = 220
    thresholds = ChantingThresholds
    part = Chant
    reads = (AgentMessage, AgentThinking)
    steps = MappingProxyType({"interrupt": "repeats"})
    documentation = Documentation(
        condition=f"a message or thought has one text of at least {BLOCK} characters `repeats` times",
        avoids="code, tables, lists, quotations and headings are ignored. A text that is part of different sentences, "
        "such as a path, is not a repetition",
        source="Gemini CLI's loop detection, which needs ten chunks of 50 characters",
    )

    def fold(self, part: Chant, observation: Observation, _facts: Facts) -> Chant:
        """Count the repetitions in a text. Those in earlier texts no longer count."""
        event = observation.event
        assert isinstance(event.data, AgentMessage | AgentThinking)
        count = repetitions(event.data.content)
        if count < _MIN_REMEMBERED:
            return part if part.count == 0 else Chant()
        return Chant(count, event.at, event.number, (event.id,) if event.id else ())

    def pattern(self, part: Chant) -> Pattern | None:
        """The repetition, even below the threshold."""
        if part.since is None:
            return None
        summary = f"one text, {part.count} times within a message"
        return Pattern(self.name, "text", part.since, part.began, part.count, summary, part.evidence)

    def evaluate(self, part: Chant, _facts: Facts, _now: datetime, thresholds: ChantingThresholds) -> Pattern | None:
        """The repetition, if there are enough repeats."""
        return self.pattern(part) if part.count >= thresholds.repeats else None

    def steering_text(self, part: Chant) -> str:
        """The message: what the agent repeats, and what to do instead."""
        return (
            f"Your last text repeats the same sentence {part.count} times. Stop writing it. Do the next concrete step "
            "with a tool, or end the task and state what prevents it."
        )

    def is_repeated(self, key: str, part: Chant, observation: Observation) -> bool | None:  # noqa: ARG002  # one key
        """Another text shows the pattern if it is a chant, too."""
        return None if observation.event.data is None else part.count > 0

    def ignored_after(self, thresholds: ChantingThresholds) -> int:  # noqa: ARG002  # one more text is enough
        """One further text of this kind."""
        return 1


def repetitions(text: str) -> int:
    """How often the text that is repeated the most occurs; 0 if the text is too short to repeat one."""
    if len(text) < 3 * BLOCK:
        return 0
    text = text[-MAX_CHARS:]
    if "```" in text or "~~~" in text:
        text = _CODE_BLOCK.sub("", text)
    blocks = list(_blocks(text))
    equal_blocks = max(Counter(blocks).values(), default=0)
    return max(equal_blocks, *map(_count_periods, (block for block in blocks if len(block) >= 3 * BLOCK)), 0)


def _blocks(text: str) -> Iterator[str]:
    """The blocks of a text: its sentences and lines. Short ones that follow each other are joined."""
    block = ""
    for piece in _pieces(text):
        normalized = " ".join(piece.split()).lower()
        block = normalized if len(normalized) >= BLOCK else f"{block} {normalized}".strip()
        if len(block) >= BLOCK:
            if _is_varied(block):
                yield block
            block = ""


def _is_varied(text: str) -> bool:
    """Whether a text has at least `_MIN_LETTERS` different characters.

    To count all of a long text would take much longer.
    """
    for _ in range(_MIN_LETTERS - 1):
        text = text.replace(text[0], "")
        if not text:
            return False
    return True


def _pieces(text: str) -> Iterator[str]:
    """The sentences of each line that is not ignored."""
    for line in text.split("\n"):
        if _IGNORED_LINE.match(line):
            continue
        begin = 0
        for end in _SENTENCE_END.finditer(line):
            yield line[begin : end.start() + 1]
            begin = end.end()
        yield line[begin:]


def _count_periods(block: str) -> int:
    """How often the end of a long block without punctuation is repeated at equal distances."""
    end = block[-BLOCK:]
    distance = len(block) - BLOCK - block.rfind(end, 0, len(block) - 1)
    if len(set(end)) < _MIN_LETTERS or distance > len(block) // 2:
        return 0
    # The smallest multiple of the distance that is at least `BLOCK`.
    period = max(distance, -(-BLOCK // distance) * distance)
    count, position = 1, len(block) - BLOCK - period
    while position >= 0 and block.startswith(end, position):
        count, position = count + 1, position - period
    return count


RULE: Final = Chanting()
