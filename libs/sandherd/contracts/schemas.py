"""The JSON Schemas (2020-12) of all messages, for other languages and for tests.

They are generated from the classes that read and write the messages; `docs/build.py` writes them to files. The same
code always generates the same bytes.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.envelope import Envelope, schema_urn
from sandherd.contracts.errors import Problem
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.field_meanings import meaning_of
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.requests import REQUESTS, Reply

Document = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def published_models() -> dict[str, type[BaseModel]]:
    """All models with a schema of their own, by the last part of the schema's URN."""
    requests = {f"{name}.request": model for name, model in REQUESTS.items()}
    replies = {f"{name}.reply": reply_model(name) for name in REQUESTS}
    others: dict[str, type[BaseModel]] = {"inbox-message": InboxMessage, "receipt": Receipt, "problem": Problem}
    return {**EVENTS, **COMMANDS, **requests, **replies, **others}


def reply_model(request: str) -> type[BaseModel]:
    """The model of a request's reply."""
    reply: Any = REQUESTS[request].Answer
    return Reply[reply]


@cache
def json_schemas() -> Mapping[str, Document]:
    """The JSON Schemas (2020-12) of all models, and of the envelope, by name.

    All callers share one mapping and must not change it: generating the schemas takes a third of a second of CPU time.
    """
    schemas = {name: _schema(name, model) for name, model in published_models().items()}
    schemas["envelope"] = _schema("envelope", Envelope)
    schemas["envelope"]["properties"]["data"] = {
        "type": "object",
        "description": "The data of the message; its schema is named by `dataschema`.",
    }
    schemas["envelope"].pop("$defs", None)
    return schemas


def _schema(name: str, model: type[BaseModel]) -> Document:
    schema = model.model_json_schema(schema_generator=_Schemas)
    return {"$schema": DIALECT, "$id": schema_urn(name), **schema}


@cache
def schemas_by_reference(ref_template: str) -> tuple[dict[str, Document], dict[str, Document]]:
    """A reference to each published model, by name, and the schemas that the references refer to."""
    models = published_models()
    models_and_modes: list[Any] = [(model, "validation") for model in models.values()]
    refs, pool = models_json_schema(models_and_modes, ref_template=ref_template, schema_generator=_Schemas)
    return {name: refs[model, "validation"] for name, model in models.items()}, pool["$defs"]


class _Schemas(GenerateJsonSchema):
    """Generates JSON Schemas with the docstrings of fields as descriptions, and without titles derived from names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # pydantic's signature
        """False: a title that repeats the name has no information."""
        return False

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> Document:
        """The schema without `discriminator`: AsyncAPI and strict validators reject this keyword of OpenAPI."""
        document = super().tagged_union_schema(schema)
        document.pop("discriminator", None)
        return document

    def bytes_schema(self, schema: core_schema.BytesSchema) -> Document:
        """The schema of bytes, which are base64url in JSON (RFC 4648 §5) and therefore longer by a third."""
        max_length = schema.get("max_length")
        document: Document = {"type": "string", "contentEncoding": "base64url", "pattern": "^[A-Za-z0-9_-]*={0,2}$"}
        return document if max_length is None else document | {"maxLength": -(-max_length // 3) * 4}

    def model_schema(self, schema: core_schema.ModelSchema) -> Document:
        """The schema of a model, with descriptions of its fields."""
        document = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        descriptions = field_docs(model)
        for name, field in document.get("properties", {}).items():
            described = descriptions.get(name) or _meaning(model, name)
            if described:
                field.setdefault("description", described)
        return document


def _meaning(model: type[BaseModel], field: str) -> str | None:
    return meaning_of(model.__mro__, field) if issubclass(model, EventData) else None


@cache
def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstring of each field. A docstring in the class takes precedence over one in a base class."""
    descriptions: dict[str, str] = {}
    for cls in model.__mro__:
        if cls.__module__.startswith("sandherd.") and "[" not in cls.__name__:
            descriptions = {**docstrings(cls), **descriptions}
    return descriptions


def docstrings(cls: type) -> dict[str, str]:
    """The docstrings of the fields that the class itself declares, by field."""
    return dict(_field_docstrings(_classes(inspect.getsourcefile(cls) or "").get(cls.__name__, ())))


@cache
def _classes(file: str) -> Mapping[str, Sequence[ast.stmt]]:
    """The statements of each class in a file, by name. The file is parsed once for all of its classes."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _field_docstrings(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, following in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield field.target.id, inspect.cleandoc(text.value)
