"""Models of bodies and queries with the fields of the contracts, so that no field is declared twice."""

from typing import Any

from pydantic import BaseModel, ConfigDict, StrictBool, create_model


def part_of(contract: type[BaseModel], name: str, *, without: frozenset[str], **extra_fields: Any) -> type[BaseModel]:
    """A model with a contract's fields except those in `without`, and `extra_fields`. It refuses other fields."""
    fields: dict[str, Any] = {
        field: (info.annotation, info) for field, info in contract.model_fields.items() if field not in without
    }
    return _model(contract, name, fields | extra_fields)


def body_of(contract: type[BaseModel], name: str, *, without: frozenset[str], **extra_fields: Any) -> type[BaseModel]:
    """A model like that of `part_of`, for a JSON body: in a query `0` and `"yes"` are booleans, but not in JSON."""
    fields: dict[str, Any] = {
        field: (StrictBool if info.annotation is bool else info.annotation, info)
        for field, info in contract.model_fields.items()
        if field not in without
    }
    return _model(contract, name, fields | extra_fields)


def _model(contract: type[BaseModel], name: str, fields: dict[str, Any]) -> type[BaseModel]:
    config = ConfigDict(frozen=True, extra="forbid")
    return create_model(name, __config__=config, __doc__=contract.__doc__, **fields)
