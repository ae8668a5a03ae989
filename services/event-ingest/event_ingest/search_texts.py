"""The searched text of an event, the words of a search, and where they are in a text. Pure.

The index of words is computed by the database function `event_terms`, which must return the words of `searched_text`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.agent import AgentCompleted, AgentError, AgentFailed, AgentStreamError
from sandherd.contracts.events.conversation import (
    AgentMessage,
    AgentMessageInjected,
    AgentMessageSent,
    AgentThinking,
    AgentUserMessage,
)
from sandherd.contracts.events.task import TaskSubmitted
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolResult, AgentToolUse
from sandherd.contracts.requests.search import SEARCHED_CHARACTERS, TextKind, TextMatch

Data = Mapping[str, Any]
SEPARATORS: Final = (
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\n\t\r\u00a0\u201c\u201d\u2018\u2019\u2014\u2013\u2026\u00ab\u00bb"
)
"""The characters that separate words, besides spaces: punctuation, line ends, tabs, and quotation marks and dashes."""
SNIPPET: Final = 240
"""Maximum characters of a snippet."""
_MAX_CHARACTERS_BEFORE: Final = 80
"""Maximum characters of a snippet before the first word that was found."""
_DAY: Final = timedelta(days=1)
_PARTITION_PREFIX: Final = "events_"
_DEFAULT_PARTITION: Final = "events_default"
_MAX_MATCHES: Final = 20
_TERM: Final = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')
"""A term of a search: a minus sign to exclude it, and a quoted or a plain text."""
_COLOURS_AND_CONTROLS: Final = re.compile("\x1b\\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SEPARATORS_TO_SPACES: Final = str.maketrans(dict.fromkeys(SEPARATORS, " "))


def _field(name: str) -> Callable[[Data], str]:
    return lambda data: str(data.get(name) or "")


def _call_text(data: Data) -> str:
    arguments = data.get("input") or {}
    values = arguments.values() if isinstance(arguments, dict) else [arguments]
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return " ".join([str(data.get("tool") or ""), *texts])


def _edit_text(data: Data) -> str:
    return f"{data.get('file_path') or ''}\n{data.get('full_diff') or data.get('diff_preview') or ''}"


_TEXTS: Final[Mapping[str, tuple[TextKind, Callable[[Data], str]]]] = MappingProxyType(
    {
        AgentMessage.type: ("message", _field("content")),
        AgentThinking.type: ("message", _field("content")),
        AgentUserMessage.type: ("message", _field("content")),
        AgentMessageInjected.type: ("message", _field("content")),
        AgentMessageSent.type: ("message", _field("content")),
        TaskSubmitted.type: ("message", _field("task")),
        AgentToolUse.type: ("command", _call_text),
        AgentFileEdited.type: ("diff", _edit_text),
        AgentToolResult.type: ("output", _field("result")),
        AgentError.type: ("output", _field("error")),
        AgentStreamError.type: ("output", _field("error")),
        AgentFailed.type: ("output", _field("error")),
        AgentCompleted.type: ("output", _field("final_output")),
    }
)
"""The kind of text of each searched type, and the function that returns the text."""
SEARCHED_TYPES: Final = tuple(_TEXTS)
"""The types of events that are searched."""


def kind_of(event_type: str) -> TextKind:
    """The kind of text of a searched type."""
    return _TEXTS[event_type][0]


def searched_text(event_type: str, data: Data) -> str:
    """The searched text of an event, without terminal colours and control characters."""
    return _COLOURS_AND_CONTROLS.sub(" ", _TEXTS[event_type][1](data)[:SEARCHED_CHARACTERS])


@dataclass(frozen=True)
class SearchTerm:
    """Words that a hit contains next to each other; if `excluded`, a hit does not contain them so."""

    tokens: tuple[str, ...]
    excluded: bool = False

    @property
    def is_phrase(self) -> bool:
        """Whether the order of its words matters."""
        return len(self.tokens) > 1

    @property
    def phrase(self) -> str:
        """The words with a space between them, and one before and after them."""
        return f" {' '.join(self.tokens)} "


def search_terms(text: str) -> list[list[SearchTerm]]:
    """The terms of a search, in groups: a hit matches at least one term of each group.

    Raises `ContractError` if there is no word, or only words to exclude, because nearly all events would be hits.
    """
    groups: list[list[SearchTerm]] = []
    follows_or = False
    for sign, quoted, plain in _TERM.findall(text):
        tokens = tuple((quoted or plain).translate(_SEPARATORS_TO_SPACES).lower().split())
        if plain == "or" and groups:
            follows_or = True
        elif tokens and follows_or and not sign and not groups[-1][0].excluded:
            groups[-1].append(SearchTerm(tokens))
            follows_or = False
        elif tokens:
            groups.append([SearchTerm(tokens, bool(sign))])
            follows_or = False
    if all(group[0].excluded for group in groups):
        raise ContractError(
            Code.INVALID_FIELD, "text: no word to search for", field="text", remedy="name a word of letters or digits"
        )
    return groups


def token_query(groups: Sequence[Sequence[SearchTerm]]) -> str:
    """The words that a hit has, as a `tsquery`. Excluded phrases are left out: a hit may have their single words."""
    conditions = []
    for group in groups:
        terms = [" & ".join(map(_quote, term.tokens)) for term in group]
        if not group[0].excluded:
            conditions.append("(" + " | ".join(f"({term})" for term in terms) + ")")
        elif not group[0].is_phrase:
            conditions.append(f"!{terms[0]}")
    return " & ".join(conditions)


def phrases(groups: Sequence[Sequence[SearchTerm]]) -> list[tuple[list[str], bool]]:
    """The conditions that the index can't decide: lists of phrases, and whether they are excluded.

    The text of a hit contains one phrase of each list, or none if the list is excluded.
    """
    return [
        ([term.phrase for term in group], group[0].excluded)
        for group in groups
        if any(term.is_phrase for term in group)
    ]


def search_marks(*alternatives: Sequence[str]) -> str:
    """The marks of a hit, such as `p default` for its project, as a `tsquery`: one of each non-empty list."""
    return " & ".join(f"({' | '.join(map(_quote, marks))})" for marks in alternatives if marks)


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def searched_partitions(
    names: Sequence[str], since: datetime | None, until: datetime | None, start: str | None
) -> list[str]:
    """The partitions for an interval, from the partition `start` on, in the order of `names`.

    `names` begins with the newest partition, and ends with the default partition.
    The time in the id of an event, and the time of the event itself, are at most a day apart.
    """
    first = f"{_PARTITION_PREFIX}{since - _DAY:%Y%m%d}" if since else ""
    last = f"{_PARTITION_PREFIX}{until + _DAY:%Y%m%d}" if until else _DEFAULT_PARTITION
    begin = _DEFAULT_PARTITION if start is None else start
    # The names of days sort before `events_default`. A search that continues in `events_default` has read all days.
    return [
        name
        for name in names
        if name == _DEFAULT_PARTITION
        or ((begin != _DEFAULT_PARTITION or start is None) and first <= name <= min(last, begin))
    ]


def term_index(partition: str) -> str:
    """The name of a partition's index of words, which it has once its day is over."""
    return f"{partition}_of_words"


def plain_terms(groups: Sequence[Sequence[SearchTerm]]) -> list[list[list[str]]]:
    """The words of the groups of terms that can be searched for in a document without reading its JSON.

    They are for a quick check of events without an index. Groups with other characters than ASCII letters and digits
    are left out, because JSON may escape them.
    """
    tokens = [[list(term.tokens) for term in group] for group in groups if not group[0].excluded]
    return [group for group in tokens if all(token.isascii() and token.isalnum() for term in group for token in term)]


def included_tokens(groups: Sequence[Sequence[SearchTerm]]) -> list[str]:
    """The words of a search, without the excluded words."""
    return [word for group in groups for term in group if not term.excluded for word in term.tokens]


def snippet_of(text: str, tokens: Sequence[str]) -> tuple[str, list[TextMatch]]:
    """A part of a text around the first of these words, and the positions of the words in this part."""
    pattern = _pattern(tokens)
    first = pattern.search(text)
    start = max(0, first.start() - _MAX_CHARACTERS_BEFORE) if first else 0
    snippet = text[start : start + SNIPPET]
    matches = [TextMatch(start=match.start(), end=match.end()) for match in pattern.finditer(snippet)]
    return snippet, matches[:_MAX_MATCHES]


def _pattern(tokens: Sequence[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word) for word in tokens)
    return re.compile(rf"(?<![^\W_])(?:{alternatives})(?![^\W_])", re.IGNORECASE)
