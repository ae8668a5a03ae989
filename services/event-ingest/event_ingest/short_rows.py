"""The short form of a row of `events`: it does not repeat in its document what other columns have. Pure.

An event as Sandherd writes it is an envelope of known form around `data`. Of such a document, only `data` and
`traceparent` are stored, as a JSON object. So `envelope -> 'data'` reads both forms. The database function
`event_document` returns the whole document. Any other document is stored whole. In the row of an agent's event, source
and sandbox are empty, because they follow from its entity.
"""

import re
from collections.abc import Sequence
from typing import Final

from event_ingest.event_rows import Row
from sandherd.contracts.decoder import AGENT_SOURCE

_TRACE: Final = re.compile('"traceparent":"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",')
"""It matches exactly 72 characters, the number that `event_document` takes from a short document."""
_DATA: Final = '"data":'


def short_rows(rows: Sequence[Row], known_rows: Sequence[Row | None]) -> list[Row]:
    """The rows in their short form, if they have one. `known_rows` has the short forms that are known already."""
    return [short or short_row(row) for row, short in zip(rows, known_rows, strict=True)]


def short_row(row: Row) -> Row:
    """A row in its short form. Its document stays whole if `event_document` could not restore exactly the same text."""
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
        document = _cut_envelope(document, head, scope)
    if sandbox == entity and source == AGENT_SOURCE + entity:
        # Empty texts rather than nulls: a row without nulls needs 8 bytes less.
        return id_, number, sequence, time, project, entity, type_, "", task or "", "", document, size
    return id_, number, sequence, time, project, entity, type_, source, task, sandbox, document, size


def _cut_envelope(document: str, head: str, scope: str) -> str:
    """The document without `head` and `scope`; unchanged if `scope` and `data` do not follow `head`."""
    position, trace = len(head), ""
    if match := _TRACE.match(document, position):
        trace, position = match[0], match.end()
    if not document.startswith(scope + _DATA, position):
        return document
    return f"{{{trace}{document[position + len(scope) :]}"
