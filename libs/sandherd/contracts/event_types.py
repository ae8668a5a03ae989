"""Filters of event types: a type such as `agent.tool_use`, or a whole domain, `agent` or `agent.*`."""

import re
from collections.abc import Sequence
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EVENTS

DOMAINS: Final = frozenset(name.partition(".")[0] for name in EVENTS)
_TYPE: Final = re.compile(r"[a-z][a-z_]{0,63}\.[a-z][a-z_]{0,63}", re.ASCII)


def chosen_types(filters: Sequence[str], *, newer: bool = False) -> list[str]:
    """The types and domains (without `.*`) in these filters, sorted. A type is left out if its domain is also listed.

    With `newer`, an unknown type in a known domain is accepted: services of a newer version may have published it.
    Raises `ContractError` whose field is the position of the invalid filter, such as `types.0`.
    """
    names = [_type_or_domain(index, text, newer=newer) for index, text in enumerate(filters)]
    return sorted({name for name in names if name in DOMAINS or name.partition(".")[0] not in names})


def _type_or_domain(index: int, text: str, *, newer: bool) -> str:
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
