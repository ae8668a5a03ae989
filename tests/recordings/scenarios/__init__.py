"""The scenarios of all recordings, in modules by subject."""

import importlib
import pkgutil


def load() -> None:
    """Register every scenario."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
