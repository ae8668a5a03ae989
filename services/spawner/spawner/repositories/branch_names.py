"""Names of branches by GitFlow: a prefix by a rule, and a readable slug. Pure.

The prefix is that of the first rule (`SANDHERD_BRANCH_PREFIXES`) with a word that occurs in the title. If it is
`bugfix` and the task has the priority `critical`, the prefix is `hotfix`. The slug is the ticket, if there is one, and
the words of the title. A name has at most `MAX_LENGTH` characters. After the prefix these are `a-z`, `0-9`, `-` and
`/`. So it is valid by git-check-ref-format(1) and distinct on file systems that ignore case.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

MAX_LENGTH: Final = 60
"""Maximum characters of a name."""
Rules = Mapping[str, Sequence[str]]
"""The words of each prefix, in lower case. The rules are tried in this order. If none matches, the first prefix without
words is used."""
_FEATURE, _BUGFIX, _HOTFIX = "feature", "bugfix", "hotfix"
_SUFFIX_LENGTH: Final = 6
"""Length of the suffix that makes a name unique: 30 bits of a digest of the task's name."""
_MAX_SUFFIXES: Final = 100
"""Maximum suffixes that are tried for a name."""
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""The characters of suffixes: those of Crockford's base 32, in lower case."""


def rules_of(entries: Iterable[str]) -> Rules:
    """The rules of a setting. An entry is for example `bugfix=fix|bug`."""
    parts = (entry.partition("=") for entry in entries)
    return {prefix: tuple(listed.split("|")) if listed else () for prefix, _, listed in parts}


def prefix_of(title: str, priority: str, rules: Rules) -> str:
    """The prefix for a task."""
    terms = frozenset(_terms(title))
    default = next((prefix for prefix, rule_terms in rules.items() if not rule_terms), _FEATURE)
    prefix = next((prefix for prefix, rule_terms in rules.items() if not terms.isdisjoint(rule_terms)), default)
    return _HOTFIX if prefix == _BUGFIX and priority == "critical" and _HOTFIX in rules else prefix


def branch_name(title: str, *, prefix: str, task: str, ticket: str | None = None, taken: Iterable[str] = ()) -> str:
    """The name of a task's branch, which depends only on the arguments.

    `title` is the first line of the task's text. `taken` are the names of other branches. A name that collides with
    one of these gets a suffix that is computed from the task's name.
    """
    used = frozenset(name.casefold() for name in taken)
    folder = f"{prefix}/"
    if not used.isdisjoint(_folders(prefix)):  # `feature/x` can't exist beside a branch `feature`
        folder = f"{prefix.replace('/', '-')}-"
    terms = [*_terms(ticket or ""), *_terms(title)] or _terms(task)
    suffixes = ("", *(f"-{_suffix_for(f'{task} {number}')}" for number in range(_MAX_SUFFIXES)))
    names = (folder + _join(terms, MAX_LENGTH - len(folder) - len(suffix)) + suffix for suffix in suffixes)
    return next(name for name in names if not collides(name, used))


def alternative_name(name: str, task: str, taken: Iterable[str]) -> str:
    """Another name for a branch, which does not collide with `taken`. Its suffix is computed from `task`.

    If one of `taken` has the name of a folder of the branch, each `/` in the name is replaced by `-`.
    """
    used = frozenset(one.casefold() for one in taken)
    short = name[: MAX_LENGTH - _SUFFIX_LENGTH - 1].rstrip("-/")
    if not used.isdisjoint(_folders(short.rpartition("/")[0])):
        short = short.replace("/", "-")
    names = (f"{short}-{_suffix_for(f'{task} {number}')}" for number in range(_MAX_SUFFIXES))
    return next(one for one in names if not collides(one, used))


def collides(name: str, used: Collection[str]) -> bool:
    """Whether git can't store a branch of this name beside branches with the used names.

    That is so if the name is used, or if the name or a used name is a folder of the other.
    """
    return not _folders(name).isdisjoint(used) or any(one.startswith(f"{name}/") for one in used)


def _folders(name: str) -> set[str]:
    """The name, and the names of all folders that contain it."""
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}


def _terms(text: str) -> list[str]:
    """The words of a text in lower-case ASCII. Accents and other characters outside ASCII are removed."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])'(?=[a-z])", "", plain))


def _join(terms: Sequence[str], limit: int) -> str:
    """The first words that fit, joined. If they use less than half of the limit, a part of the next word is added."""
    text = terms[0][:limit]
    for one in terms[1:]:
        space = limit - len(text) - 1
        if len(one) > space:
            return text if 2 * len(text) >= limit else f"{text}-{one[:space]}"
        text += f"-{one}"
    return text


def _suffix_for(seed: str) -> str:
    number = int.from_bytes(sha256(seed.encode()).digest()[:8])
    return "".join(_ALPHABET[number >> 5 * index & 31] for index in range(_SUFFIX_LENGTH))
