"""Checks whether a local stack has lost its keys, without which the data that its broker stores can't be used."""

from pathlib import Path
from typing import Final

_STORES: Final = ("nats", "nats-1", "nats-2", "nats-3")
_ROOT_KEY: Final = Path("identity") / "root" / "operator.nk"
_OF_HERD: Final = (*_STORES, "postgres", "artifacts", "creds")


def lost_identity(home: Path) -> str | None:
    """The error text if the keys are missing; None if they exist, or if no broker has stored data in this home."""
    stores = [name for name in _STORES if (home / name / "data").is_dir()]
    if not stores or (home / _ROOT_KEY).exists():
        return None
    folders = ", ".join(f"{name}/" for name in stores)
    return f"{home / 'identity'} is missing: it has the herd's keys, without which {folders} can't be used"


def lost_identity_remedy(home: Path) -> str:
    """The remedy: to restore the keys, or to begin a new herd."""
    present = ", ".join(f"{name}/" for name in _OF_HERD if (home / name).exists())
    return (
        "restore identity/ from a backup of this herd; or, to begin a new herd without the history of this one, "
        f"move or delete {present} in {home}"
    )
