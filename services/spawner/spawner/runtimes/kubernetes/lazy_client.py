"""Loads the Kubernetes client without its models: a thousand modules and 45 MiB, none of which are used here.

Objects are plain JSON (`cluster`). The client's packages import all models when anything in them is imported; here the
packages are registered without executing them, and are executed only if an attribute requires it.
"""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

CLIENT: Final = "kubernetes_asyncio"
UNRUN: Final = (CLIENT, f"{CLIENT}.client", f"{CLIENT}.client.models")
_REEXPORTED: Final = {"ApiClient": f"{CLIENT}.client.api_client", "Configuration": f"{CLIENT}.client.configuration"}
"""The names that the client's own modules import from its packages."""


class LazyPackage(ModuleType):
    """A package that is registered but has not been executed."""

    def __getattr__(self, name: str) -> Any:
        """Return a submodule, a known name, or an attribute after executing the package."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _REEXPORTED:
            return getattr(import_module(_REEXPORTED[name]), name)
        if find_spec(f"{self.__name__}.{name}"):
            return import_module(f"{self.__name__}.{name}")
        run(self)
        return getattr(self, name)


def run(package: LazyPackage) -> None:
    """Execute the package, as importing it would have done."""
    package.__class__ = ModuleType  # type: ignore[assignment]  # an ordinary module from now on
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


def prepare() -> None:
    """Register the lazy packages; call before importing the client. Does nothing if it is imported or not installed."""
    if CLIENT in sys.modules:
        return
    for name in UNRUN:
        spec = find_spec(name)
        if spec is None:
            return
        package = module_from_spec(spec)
        package.__class__ = LazyPackage
        sys.modules[name] = package
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, package)
