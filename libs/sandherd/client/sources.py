"""Where a command's settings come from: the command line, the environment, a settings file, and the stack's own word.

The settings file is the one that is named, else the one that the stack of this home was started with.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandherd.client.errors import HerdError, broken
from sandherd.contracts.errors import Code, ContractError
from sandherd.settings import CONFIG_VARIABLE, Loaded, Source, load

CONTEXT_FILE: Final = "context.json"
FROM_CONTEXT: Final = "context"


@dataclass(frozen=True)
class Sources:
    """What was found."""

    loaded: Loaded
    stack: Mapping[str, Any]
    """What the stack of this home says of itself; nothing where there was none."""
    config: Path | None = None
    """The settings file that was read."""
    config_source: str = str(Source.DEFAULT)

    @property
    def weaker(self) -> frozenset[Source]:
        """What the stack's own word goes before: of a file that it named itself it knows better what became."""
        return frozenset({Source.DEFAULT} | ({Source.YAML} if self.config_source == FROM_CONTEXT else set()))


def find(
    given: Mapping[str, Any], environ: Mapping[str, str], config: Path | None, *, lenient: bool = False
) -> Sources:
    """Find them. Raises `HerdError` for a value that is not allowed or a file that can't be read.

    Where one is `lenient`, the stack's own settings file, as it is now, is no reason for it.
    """
    loaded = _load(given, environ, config)
    stack = _read(loaded.settings.home / CONTEXT_FILE)
    named, noted = config or environ.get(CONFIG_VARIABLE), stack.get("config")
    if named:
        source = Source.PARAMETER if config else Source.ENVIRONMENT
        return Sources(loaded, stack, Path(named), str(source))
    if not isinstance(noted, str) or not noted:
        return Sources(loaded, stack)
    try:
        again = _load(given, environ, Path(noted))
    except HerdError as error:
        if lenient:
            return Sources(loaded, stack)
        remedy = "mend the file that the stack was started with, or name another one with --config"
        raise HerdError(error.problem.model_copy(update={"remedy": remedy})) from None
    return Sources(_at_home_of(loaded, again), stack, Path(noted), FROM_CONTEXT)


def _at_home_of(first: Loaded, again: Loaded) -> Loaded:
    """The settings with the home in which the file was named: no other is meant, whatever the file says."""
    settings = again.settings.model_copy(update={"home": first.settings.home})
    return Loaded(settings, {**again.sources, "home": first.sources["home"]})


def _load(given: Mapping[str, Any], environ: Mapping[str, str], config: Path | None) -> Loaded:
    try:
        return load(given, environ, config)
    except ContractError as error:
        raise broken(error) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HerdError.of(
            Code.INVALID_JSON, f"{path} can't be read: {error}", remedy="write it anew with `sandherd up`"
        ) from None
    return found if isinstance(found, dict) else {}
