"""Loads the Kubernetes client without its models, which are a thousand modules and use 45 MiB.

The models are not needed, because objects are plain JSON (`cluster`). The client's packages import all models when
anything in them is imported. Here the packages are registered without executing them, and are executed only if an
attribute is needed that nothing else provides.
"""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_CLIENT: Final = "kubernetes_asyncio"
_LAZY_PACKAGES: Final = (_CLIENT, f"{_CLIENT}.client", f"{_CLIENT}.client.models")
_REEXPORTED: Final = {"ApiClient": f"{_CLIENT}.client.api_client", "Configuration": f"{_CLIENT}.client.configuration"}
"""The names that the client's own modules import from its packages."""


class LazyPackage(ModuleType):
    """A package that is registered but has not been executed."""

    def __getattr__(self, name: str) -> Any:
        """Return a name of `_REEXPORTED` or a submodule; for any other attribute execute the package first."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _REEXPORTED:
            return getattr(import_module(_REEXPORTED[name]), name)
        if find_spec(f"{self.__name__}.{name}"):
            return import_module(f"{self.__name__}.{name}")
        _execute(self)
        return getattr(self, name)


def _execute(package: LazyPackage) -> None:
    """Execute the package, as importing it would have done."""
    package.__class__ = ModuleType  # type: ignore[assignment]  # an ordinary module from now on
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


def prepare() -> None:
    """Register the lazy packages. To be called before the client is imported.

    Does nothing if the client is imported already, or not installed.
    """
    if _CLIENT in sys.modules:
        return
    for name in _LAZY_PACKAGES:
        spec = find_spec(name)
        if spec is None:
            return
        package = module_from_spec(spec)
        package.__class__ = LazyPackage
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
