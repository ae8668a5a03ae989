"""Validation of Kubernetes objects with each schema file read once in a process."""

from functools import cache
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # no types
from kubernetes_validate import utils

utils.schema_contents = cache(utils.schema_contents)  # otherwise it reads all definitions again for every object


def validate(item: dict[str, Any], version: str) -> None:
    """Check an object against the schema of its kind, unknown fields refused; raises `ValidationError`."""
    kubernetes_validate.validate(item, version, strict=True)
