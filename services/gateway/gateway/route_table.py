"""The methods and query parameters that the routes of the API permit. Others are refused."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gateway.routes.route_replies import PREFIX
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_MAX_SHOWN_LENGTH: Final = 64


def allowed_methods(routers: Iterable[APIRouter], path: str) -> str:
    """The header `Allow` for a path: every method that one of its routes has."""
    path_below_prefix = path.removeprefix(PREFIX)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return ", ".join(
        sorted(
            {method for route in routes if route.path_regex.match(path_below_prefix) for method in route.methods or ()}
        )
    )


def check_query(request: Request) -> None:
    """Raise `HerdError` for an unknown query parameter: if a filter were ignored, the response would have too much."""
    route = request.scope["route"]
    known = _parameter_names(tuple(route.dependant.query_params))
    for name in request.query_params:
        if name not in known:
            shown_name = "".join(
                char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:_MAX_SHOWN_LENGTH]
            )
            text = f"{shown_name}: there is no such parameter"
            raise HerdError.of(Code.INVALID_FIELD, text, field=shown_name or None, remedy="see docs/openapi.json")


@lru_cache(maxsize=256)
def _parameter_names(fields: Sequence[Any]) -> frozenset[str]:
    names: set[str] = set()
    for field in fields:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names |= {info.alias or name for name, info in model.model_fields.items()}
        else:
            names.add(field.alias)
    return frozenset(names)
