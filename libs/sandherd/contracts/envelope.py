"""The envelope: a CloudEvents 1.0 document in structured JSON mode, which any CloudEvents library reads.

Source of the rules: CloudEvents 1.0.2, JSON event format; the extensions are Sandherd's.
"""

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import SafeName, new_uuid

CONTENT_TYPE: Final = "application/cloudevents+json"
MAX_EVENT_BYTES: Final = 256 * 1024
"""Maximum size of an event, command or message on the wire; larger data is sent as artifacts."""
MAX_DEPTH: Final = 128
"""Maximum nesting of objects and arrays in a message; an empty one does not count. A reply with an event nests it
deeper, and JSON parsers fail at about 200."""
MAX_SEQUENCE: Final = 2**31 - 1
_PARSER_DEPTH: Final = 200
"""The depth to which `from_json` reads, without empty objects and arrays."""

TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
SourceName = Annotated[str, StringConstraints(pattern=r"^/sandherd(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){1,3}$")]

DataT = TypeVar("DataT", bound=BaseModel)


class Envelope(Model, Generic[DataT]):
    """A message with its attributes: publisher, type, time, entity, and its number in the sequence of its source."""

    model_config = ConfigDict(frozen=True)

    specversion: Literal["1.0"]
    id: UUID
    """Created once, when the event happens. There is no default: an event without an id would get a new one each time
    it is read."""
    source: SourceName
    """Who publishes it: `/sandherd/sandbox/<id>` for a worker, `/sandherd/<service>/…` for a service."""
    type: str
    subject: SafeName
    """The name of what the message is about. For a command: the task or sandbox that `data` names. For an event, it is
    also the fifth token of the NATS subject: the task (`task.*`, `branch.*`), the sandbox (`sandbox.*`, `agent.*`,
    `message.*`, `approval.*`, `monitor.*`), the subscription (`subscription.*`), the webhook (`webhook.*`), or the
    credential (`credential.*`). An event of `monitor.*` about all sandboxes has `fleet`. The refusal of a command has
    the name in the command, or `unknown`."""
    time: Moment
    datacontenttype: Literal["application/json"] = "application/json"
    dataschema: str
    """`urn:sandherd:v1:<type>`, the identifier of the JSON Schema of `data`."""
    sequence: Annotated[int, Field(ge=1, le=MAX_SEQUENCE)]
    """The number of the message in the sequence of its source: from 1, without gaps."""
    traceparent: Annotated[str, StringConstraints(pattern=TRACEPARENT_PATTERN)] | None = None
    project: SafeName
    taskid: SafeName | None = None
    sandboxid: SafeName | None = None
    data: DataT

    def to_json(self) -> bytes:
        """The document as it is sent on the wire.

        Raises `ContractError`: `too_large` above `MAX_EVENT_BYTES`, `invalid_field` for what JSON can't represent.
        """
        document = write(self)
        check_size(document)
        return document


def write(model: BaseModel) -> bytes:
    """The model as JSON, without absent fields. Raises `ContractError` for what JSON can't represent."""
    try:
        return model.model_dump_json(exclude_none=True).encode()
    except PydanticSerializationError:
        raise ContractError(
            Code.INVALID_FIELD,
            "data can't be written as JSON: it has a lone surrogate, a circular reference or an unsupported object",
            field="data",
            remedy='decode bytes with errors="replace"',
        ) from None


def schema_urn(event_type: str) -> str:
    """The `dataschema` of a type."""
    return f"urn:sandherd:v1:{event_type}"


def check_size(document: bytes) -> None:
    """Raise `ContractError` (`too_large`) if the document is over `MAX_EVENT_BYTES`."""
    if len(document) > MAX_EVENT_BYTES:
        raise ContractError(
            Code.TOO_LARGE,
            f"{len(document)} bytes is over the limit of {MAX_EVENT_BYTES}",
            remedy="send large data as an artifact and a reference to it",
        )


@cache
def _envelope_of(model: type[BaseModel]) -> type[Envelope[Any]]:
    return Envelope[model]  # type: ignore[valid-type]  # a model chosen at run time


def build_validator(model: type[BaseModel]) -> None:
    """Build the validator and the serializer of an envelope with this `data` now, instead of at their first use."""
    model.model_rebuild()
    _envelope_of(model).model_rebuild()


def parse(document: bytes, model: type[DataT]) -> Envelope[DataT]:
    """Read an envelope whose `data` is a `model`. Raises `ContractError`, which names the invalid field.

    Types are checked strictly: an accepted document also matches the published JSON Schema, and can be written
    unchanged.
    """
    check_size(document)
    _check_json(document)
    return _parse_whole(document, model)


def _parse_whole(document: bytes, model: type[DataT]) -> Envelope[DataT]:
    try:
        return _envelope_of(model).model_validate_json(document, strict=True)
    except ValidationError as error:
        raise ContractError.from_validation(error, document) from None


def parse_separately(document: bytes, model: type[DataT]) -> Envelope[Any]:
    """Like `parse`, but validates envelope and `data` in turn: for a program that reads a small number of each type.

    `parse` builds a validator for each type, which costs as much CPU time as reading hundreds of events.
    """
    check_size(document)
    _check_json(document)
    return parse_unlimited(document, model)


def parse_unlimited(document: bytes, model: type[DataT]) -> Envelope[Any]:
    """Like `parse_separately`, without limits of size and nesting.

    For a stored event, which was checked before: it may be longer when it is written again, and its limits may have
    been others.
    """
    try:
        found = Envelope[Any].model_validate_json(document, strict=True)
        data = model.model_validate_json(to_json(found.data, inf_nan_mode="null"), strict=True)
    except ValidationError:
        return _parse_whole(document, model)  # its error names the field within the whole document
    return found.model_copy(update={"data": data})


def _check_json(document: bytes) -> None:
    """Raise `ContractError` for JSON that pydantic accepts, and other readers of the message do not.

    These are `NaN` and `Infinity`, which Postgres refuses, and structures nested deeper than `MAX_DEPTH`.
    """
    if is_nested_deeper(document, MAX_DEPTH):
        raise ContractError(
            Code.INVALID_JSON,
            f"Invalid JSON: nested deeper than {MAX_DEPTH} levels",
            remedy="send deeply nested data as text",
        )
    if b"NaN" in document or b"Infinity" in document:
        try:
            from_json(document, allow_inf_nan=False)
        except ValueError as error:
            raise ContractError(Code.INVALID_JSON, f"Invalid JSON: {error}") from None


def is_nested_deeper(document: bytes, levels: int) -> bool:
    """Whether valid JSON is nested deeper than this number of levels, at most 200; empty ones do not count."""
    if document.count(b"{") + document.count(b"[") <= levels:
        return False
    deeper = _PARSER_DEPTH - levels
    try:
        from_json(b"[" * deeper + document + b"]" * deeper)
    except ValueError as error:
        return "recursion limit" in str(error)
    return False


def wrap(  # noqa: PLR0913  # one parameter for each attribute of the envelope
    data: DataT,
    event_type: str,
    *,
    source: str,
    sequence: int,
    project: str,
    subject: str,
    time: datetime,
    id: UUID | None = None,
    taskid: str | None = None,
    sandboxid: str | None = None,
    traceparent: str | None = None,
) -> Envelope[DataT]:
    """Put `data` into an envelope. Raises `ContractError` if a name in it is not safe."""
    try:
        return _envelope_of(type(data))(
            specversion="1.0",
            id=id or new_uuid(),
            source=source,
            type=event_type,
            subject=subject,
            time=time,
            dataschema=schema_urn(event_type),
            sequence=sequence,
            traceparent=traceparent,
            project=project,
            taskid=taskid,
            sandboxid=sandboxid,
            data=data,
        )
    except ValidationError as error:
        raise ContractError.from_validation(error) from None
