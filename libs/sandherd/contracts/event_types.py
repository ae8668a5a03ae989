"""Filters of event types: a type such as `agent.tool_use`, or a whole domain, `agent` or `agent.*`."""

import re
from collections.abc import Sequence
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS

MAX_TYPES: Final = 64
DOMAINS: Final = frozenset(name.partition(".")[0] for name in EVENTS)
_TYPE: Final = re.compile(r"[a-z][a-z_]{0,63}\.[a-z][a-z_]{0,63}", re.ASCII)


def chosen_types(filters: Sequence[str], *, newer: bool = False) -> list[str]:
    """The types and domains (without `.*`) of a filter, sorted, without those whose domain is also named.

    With `newer` a type of a newer version is accepted in a known domain: the history may have it, and clients may be
    newer than services. Raises `ContractError` with the place of a filter that is wrong, such as `types.0`.
    """
    names = [_checked(index, text, newer=newer) for index, text in enumerate(filters)]
    return sorted({name for name in names if name in DOMAINS or name.partition(".")[0] not in names})


def _checked(index: int, text: str, *, newer: bool) -> str:
    name = text.removesuffix(".*")
    if name in EVENTS and name == text:
        return name
    if name in DOMAINS:
        return name
    if newer and name == text and name.partition(".")[0] in DOMAINS and _TYPE.fullmatch(name):
        return name
    raise ContractError(
        Code.INVALID_FIELD,
        f"types.{index}: {text[:60]!r} is neither a type like 'agent.tool_use' nor a domain like 'agent' or 'agent.*'",
        field=f"types.{index}",
        remedy="see docs/events.md for the types, and for the domains that they begin with",
    )
