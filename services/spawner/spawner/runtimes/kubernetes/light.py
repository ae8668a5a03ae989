"""The client for Kubernetes without its models: a thousand modules and 45 MiB, of which nothing is used here.

Objects go in and out as plain JSON (`cluster`). The client's packages import all of its models as soon as anything of
it is imported; here they are put in place unrun, and are run if something is asked of them that only that brings.
"""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

CLIENT: Final = "kubernetes_asyncio"
UNRUN: Final = (CLIENT, f"{CLIENT}.client", f"{CLIENT}.client.models")
_BROUGHT: Final = {"ApiClient": f"{CLIENT}.client.api_client", "Configuration": f"{CLIENT}.client.configuration"}
"""What its own modules take from its packages."""


class Unrun(ModuleType):
    """A package that is there, and has not been run."""

    def __getattr__(self, name: str) -> Any:
        """A module of it, what is known of it, or whatever there is once it has been run."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _BROUGHT:
            return getattr(import_module(_BROUGHT[name]), name)
        if find_spec(f"{self.__name__}.{name}"):
            return import_module(f"{self.__name__}.{name}")
        run(self)
        return getattr(self, name)


def run(package: Unrun) -> None:
    """As importing it would have."""
    package.__class__ = ModuleType  # type: ignore[assignment]  # it is nothing else from now on
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    package.__spec__.loader.exec_module(package)


def prepare() -> None:
    """Before anything of the client is imported. Where it is there already, or not installed, nothing is done."""
    if CLIENT in sys.modules:
        return
    for name in UNRUN:
        spec = find_spec(name)
        if spec is None:
            return
        package = module_from_spec(spec)
        package.__class__ = Unrun
        sys.modules[name] = package
        above, _, own = name.rpartition(".")
        if above:
            setattr(sys.modules[above], own, package)
