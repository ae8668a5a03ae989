"""The JSON Schema (2020-12) of everything that may be said, for other languages and for tests.

Made from the same classes that read and write the wire; `docs/build.py` writes them down. Same code, same bytes.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.delivery import InboxMessage, Receipt
from sandherd.contracts.envelope import Envelope, schema_urn
from sandherd.contracts.errors import Problem
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import REQUESTS, Reply

Document = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def published() -> dict[str, type[BaseModel]]:
    """Every model with a schema of its own, by the name that ends its URN."""
    questions = {f"{name}.request": model for name, model in REQUESTS.items()}
    answers = {f"{name}.reply": reply_of(name) for name in REQUESTS}
    loose: dict[str, type[BaseModel]] = {"inbox-message": InboxMessage, "receipt": Receipt, "problem": Problem}
    return {**EVENTS, **COMMANDS, **questions, **answers, **loose}


def reply_of(request: str) -> type[BaseModel]:
    """The model of what comes back for a request."""
    answer: Any = REQUESTS[request].Answer
    return Reply[answer]


def json_schemas() -> dict[str, Document]:
    """The JSON Schema (2020-12) of every model, and of the envelope, by name."""
    schemas = {name: _schema(name, model) for name, model in published().items()}
    schemas["envelope"] = _schema("envelope", Envelope)
    schemas["envelope"]["properties"]["data"] = {"type": "object", "description": "By `dataschema`."}
    schemas["envelope"].pop("$defs", None)
    return schemas


def _schema(name: str, model: type[BaseModel]) -> Document:
    made = model.model_json_schema(schema_generator=_Schemas)
    return {"$schema": DIALECT, "$id": schema_urn(name), **made}


def pooled(ref_template: str) -> tuple[dict[str, Document], dict[str, Document]]:
    """A reference to each published model by name, and the pool of schemas that these refer to."""
    models = published()
    wanted: list[Any] = [(model, "validation") for model in models.values()]
    refs, pool = models_json_schema(wanted, ref_template=ref_template, schema_generator=_Schemas)
    return {name: refs[model, "validation"] for name, model in models.items()}, pool["$defs"]


class _Schemas(GenerateJsonSchema):
    """Pydantic's schemas, with the docstrings below the fields as descriptions and no titles made of names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # pydantic's signature
        """Never: a title that repeats the name says nothing."""
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> Document:
        """Bytes are base64url in JSON (RFC 4648 §5), and there they are longer by a third."""
        longest = schema.get("max_length")
        said: Document = {"type": "string", "contentEncoding": "base64url", "pattern": "^[A-Za-z0-9_-]*={0,2}$"}
        return said if longest is None else said | {"maxLength": -(-longest // 3) * 4}

    def model_schema(self, schema: core_schema.ModelSchema) -> Document:
        """The schema of a model, its fields described."""
        document = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        said = field_docs(model)
        for name, field in document.get("properties", {}).items():
            if name in said:
                field.setdefault("description", said[name])
        return document


@cache
def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """Each field's docstring, nearest class first."""
    found: dict[str, str] = {}
    for cls in model.__mro__:
        if cls.__module__.startswith("sandherd.") and "[" not in cls.__name__:
            for name, text in _docs_below(cls):
                found.setdefault(name, text)
    return found


def _docs_below(cls: type) -> Iterator[tuple[str, str]]:
    body = ast.parse(dedent(inspect.getsource(cls))).body[0]
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, below in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield field.target.id, inspect.cleandoc(text.value)
