"""Databases of tests."""

import asyncpg

from sandherd.stack.postgres import SUPERUSER, PostgresServer


async def drop_database(server: PostgresServer, name: str) -> None:
    """Drop a database, disconnecting its clients."""
    connection = await asyncpg.connect(server.url(SUPERUSER))
    try:
        await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        await connection.close()
