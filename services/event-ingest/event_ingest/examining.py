"""Whether the database is for this version of the service: asked by whoever wants to know how it is."""

from event_ingest.database import Database
from event_ingest.migrating import MigrationRefusedError, left
from sandherd.contracts.errors import ContractError


async def look_at_migrations(database: Database) -> dict[str, str | None]:
    """By name: None if all migrations are applied, and as they are here; else what is wrong."""
    return {"postgres": await _problem(database)}


async def _problem(database: Database) -> str | None:
    try:
        async with database.reading() as connection:
            todo = await left(connection)
    except ContractError as error:
        return f"not known: {error.problem.message}"
    except MigrationRefusedError as error:
        return str(error)
    named = ", ".join(f"{migration.number} ({migration.name})" for migration in todo)
    return f"not applied: {named}" if named else None
