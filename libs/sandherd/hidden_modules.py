"""Hides or replaces modules while another module is imported."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def replaced(name: str, **attributes: object) -> Iterator[None]:
    """Replace a module by one with these attributes until the block ends, unless the module is loaded."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(attributes)
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Let imports of modules fail until the block ends, unless the modules are loaded."""
    hidden = [name for name in names if name not in sys.modules]
    # Python's own way to mark a module as not installed.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is allowed
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
