"""Every field of text in every request and command, from the models, and documents with another value in a field."""

import json
import types
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

import sandherd.contracts
from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.harnesses import PluginHarness
from sandherd.contracts.requests import REQUESTS

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1"
KEY, EACH = "{key}", "*"
"""Parts of a path that stand for the keys of an object, and for each member of a list or an object."""
MODELS: dict[str, type[BaseModel]] = {**COMMANDS, **REQUESTS}
UNIONS = (Union, types.UnionType)


@dataclass(frozen=True)
class StringField:
    """A field of text in a contract: its path, the patterns that it has to match, and the kind of harness it is of."""

    contract: str
    path: tuple[str, ...]
    patterns: tuple[str, ...]
    kind: str | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def document(self, value: Any) -> Any:
        """The golden example of the contract, with this value in the field."""
        document = _golden(self.contract)
        _put(document, self.path, value, self.kind)
        return document


def string_fields() -> list[StringField]:
    """The fields of text of all requests and commands."""
    return [field for name, model in MODELS.items() for field in _of_model(name, model, (), None)]


def _of_model(contract: str, model: type[BaseModel], path: tuple[str, ...], kind: str | None) -> Iterator[StringField]:
    kind_field = model.model_fields.get("kind")
    if model is PluginHarness:
        return  # no golden example has it: its fields are its plugin's, and so is their validation
    if path[-1:] == ("harness",) and kind_field is not None:
        kind = get_args(kind_field.annotation)[0]
    for name, field in model.model_fields.items():
        yield from _of(contract, field.annotation, (*path, name), tuple(field.metadata), kind)


def _of(
    contract: str, annotation: Any, path: tuple[str, ...], metadata: tuple[Any, ...], kind: str | None
) -> Iterator[StringField]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is str:
        yield StringField(contract, path, _patterns(metadata), kind)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _of_model(contract, annotation, path, kind)
    elif origin is Annotated:
        yield from _of(contract, inner[0], path, (*metadata, *inner[1:]), kind)
    elif origin is not Literal:
        steps = [KEY, EACH] if origin is dict else [EACH] * len(inner)
        for one, step in zip(inner, steps, strict=True):
            of_itself = origin in UNIONS
            yield from _of(contract, one, path if of_itself else (*path, step), metadata if of_itself else (), kind)


def _patterns(metadata: tuple[Any, ...]) -> tuple[str, ...]:
    found = [getattr(one, "pattern", None) for one in metadata]
    return tuple(str(pattern) for pattern in found if pattern)


def _golden(contract: str) -> Any:
    if contract in COMMANDS:
        return json.loads((GOLDEN / "commands" / f"{contract}.json").read_bytes())["data"]
    return json.loads((GOLDEN / "requests" / f"{contract}.json").read_bytes())


def _put(document: Any, path: tuple[str, ...], value: Any, kind: str | None) -> None:
    for place, step in enumerate(path[:-1]):
        if step == "harness" and kind is not None:
            document["harness"] = json.loads((GOLDEN / "harnesses" / f"{kind}.json").read_bytes())
        if step in _PARTS:
            document[step] = deepcopy(_PARTS[step])
        if step == EACH:
            document = next(iter(document.values())) if isinstance(document, dict) else document[0]
        else:
            document = document.setdefault(step, _empty(path[place + 1]))
    last = path[-1]
    if last == KEY:
        content = next(iter(document.values()), "x")
        document.clear()
        document[value] = content
    elif last == EACH and isinstance(document, list):
        document[:] = [value]
    elif last == EACH:
        document[next(iter(document), "A")] = value
    else:
        document[last] = value


def _empty(following: str) -> Any:
    return {} if following != EACH else []


_PARTS: dict[str, Any] = {
    name: json.loads((GOLDEN / "specs" / f"{name}.json").read_bytes()) for name in ("checkout", "resume")
}
