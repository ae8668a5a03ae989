"""The short form of a row of `events`: without what its other columns have, so that no fact is stored twice. Pure.

An event as Sandherd writes it is an envelope of known form around `data`. Of such a document only `data` and
`traceparent` are stored, as a JSON object like the whole one, so that `envelope -> 'data'` reads both forms; the
function `event_document` of the database returns the whole one. Any other document is stored whole. Of an agent's event
the source and the sandbox are empty, as the entity is its sandbox.
"""

import re
from collections.abc import Sequence
from typing import Final

from event_ingest.event_rows import Row
from sandherd.contracts.decoder import AGENT_SOURCE

_TRACE: Final = re.compile('"traceparent":"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",')
"""72 characters. In any other of that number, what follows could be in an object or in a text, and not a member."""
_DATA: Final = '"data":'


def short_rows(rows: Sequence[Row], known: Sequence[Row | None]) -> list[Row]:
    """The rows, each in its short form if it has one: in that which is `known`, as its event was read by that form."""
    return [short or short_row(row) for row, short in zip(rows, known, strict=True)]


def short_row(row: Row) -> Row:
    """A row in its short form; its document stays whole unless what is left out can be put back to the letter."""
    id_, number, sequence, time, project, entity, type_, source, task, sandbox, document, size = row
    moment = time.isoformat()[: -len("+00:00")]
    head = (
        f'{{"specversion":"1.0","id":"{id_}","source":"{source}","type":"{type_}","subject":"{entity}",'
        f'"time":"{moment}Z","datacontenttype":"application/json","dataschema":"urn:sandherd:v1:{type_}",'
        f'"sequence":{sequence},'
    )
    if document.startswith(head):
        scope = f'"project":"{project}",'
        if task is not None:
            scope += f'"taskid":"{task}",'
        if sandbox is not None:
            scope += f'"sandboxid":"{sandbox}",'
        document = _without(document, head, scope)
    if sandbox == entity and source == AGENT_SOURCE + entity:
        # Empty rather than null: a row without nulls has 8 bytes less.
        return id_, number, sequence, time, project, entity, type_, "", task or "", "", document, size
    return id_, number, sequence, time, project, entity, type_, source, task, sandbox, document, size


def _without(document: str, head: str, scope: str) -> str:
    """A document that begins with `head` without it and `scope`; as it is if it goes on in any other way."""
    place, trace = len(head), ""
    if found := _TRACE.match(document, place):
        trace, place = found[0], found.end()
    if not document.startswith(scope + _DATA, place):
        return document
    return f"{{{trace}{document[place + len(scope) :]}"
