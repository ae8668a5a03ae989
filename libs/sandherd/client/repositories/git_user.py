"""The user of git on this machine, as the co-author of an agent's commits."""

from pathlib import Path

from sandherd.client.errors import HerdError, validated
from sandherd.client.repositories.git import text_of
from sandherd.contracts.errors import Code
from sandherd.contracts.repositories import CoAuthor


async def git_user(folder: Path) -> CoAuthor:
    """`user.name` and `user.email` of git's configuration in a folder. Raises `HerdError` if one is not set."""
    return validated(
        CoAuthor, name=await _git_setting(folder, "user.name"), email=await _git_setting(folder, "user.email")
    )


async def _git_setting(folder: Path, name: str) -> str:
    value = await text_of(folder, "config", "--get", name, accepted=frozenset({0, 1}))
    if not value:
        remedy = f"set it with `git config --global {name} TEXT`"
        raise HerdError.of(Code.INVALID_FIELD, f"git has no {name} here", field="co_author", remedy=remedy)
    return value
