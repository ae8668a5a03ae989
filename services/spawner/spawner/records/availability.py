"""Errors of requests about stored records: the records are unavailable, or the named one does not exist."""

from collections.abc import Iterator
from contextlib import contextmanager

from sandherd.contracts.errors import Code, ContractError
from spawner.records.base_record import StoreUnavailableError


@contextmanager
def available(records: str) -> Iterator[None]:
    """Raise `ContractError` (`unavailable`) if these records, such as `secrets`, can't be read or written now."""
    try:
        yield
    except StoreUnavailableError as error:
        raise ContractError(
            Code.UNAVAILABLE, f"{records} can't be read or written now: {error}", remedy="try again in a moment"
        ) from error


def unknown(kind: str, project: str, name: str) -> ContractError:
    """The error (`not_found`) for a record that a project does not have. `kind` is a noun, such as `secret`."""
    message = f"there is no {kind} {name} in {project}"
    return ContractError(Code.NOT_FOUND, message, field="name", remedy=f"list the {kind}s")
