"""Replays stored events, from files or from the history of a project, through the rules of the monitor."""

import gzip
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.replay import ReplayReport
    from sandherd.settings import Settings

ENTRY_POINT_GROUP: Final = "sandherd.replay"
"""The entry point group in which the monitor's distribution registers its replay function."""
Replay = Callable[[Iterable[bytes], "Settings", bytes | None], "ReplayReport"]
"""A function of events as lines of JSON, the settings of the rules, and the content of a file of session labels."""


def installed_replay() -> Replay:
    """The replay function of the monitor. Raises `HerdError` if the monitor is not installed here."""
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        replay: Replay = entry_point.load()
        return replay
    raise HerdError.of(
        Code.UNAVAILABLE,
        "the rules are not installed here: they are part of the monitor",
        remedy="install sandherd-monitor of the same version",
    )


def settings_with(rules: Sequence[str], max_step: str | None) -> "Settings":
    """The settings. If given, `rules` replaces `SANDHERD_RULES`, and `max_step` `SANDHERD_MAX_INTERVENTION`.

    Raises `ContractError`, which names the valid values.
    """
    from sandherd.settings import load

    options: dict[str, Any] = {"max_intervention": max_step}
    if rules:
        options["rules"] = ",".join(rules)
    return load(options).settings


def lines_of(files: Sequence[Path]) -> Iterator[bytes]:
    """The lines of the files, in order; `-` is standard input. Raises `HerdError` for a file that can't be read."""
    for path in files:
        try:
            yield from _lines(path)
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise HerdError.of(Code.INVALID_FIELD, f"{path}: {reason}", field="files") from error


def _lines(path: Path) -> Iterator[bytes]:
    if str(path) == "-":
        yield from sys.stdin.buffer
    elif path.suffix == ".gz":
        with gzip.open(path) as packed:
            yield from packed
    else:
        with path.open("rb") as plain:
            yield from plain


def session_labels(path: Path | None) -> bytes | None:
    """The content of a file that lists for each session which rules must have a finding; None without a file.

    Raises `HerdError` if it can't be read.
    """
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise HerdError.of(Code.INVALID_FIELD, f"{path}: {error.strerror}", field="labels") from error


async def lines_of_history(herd: "Herd", **filters: Any) -> list[bytes]:
    """Events of the connection's project from the history, oldest first, as lines of JSON. Raises `HerdError`.

    `filters` are arguments of `Herd.events`, such as `sandbox`.
    """
    from pydantic_core import to_json

    return [to_json(event.envelope, inf_nan_mode="null") async for event in herd.events(**filters)]
