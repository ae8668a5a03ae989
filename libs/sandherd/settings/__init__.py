"""All settings: name, environment variable, default, meaning, and the source of the value.

The exported names are imported on first use, because a client needs only a few settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.settings.client import default_home
    from sandherd.settings.fields import Env
    from sandherd.settings.loader import LoadedSettings, SettingSource, load
    from sandherd.settings.model import Settings, environment_names
    from sandherd.settings.text_values import CONFIG_VARIABLE, MASK

__all__ = [
    "CONFIG_VARIABLE",
    "MASK",
    "Env",
    "LoadedSettings",
    "SettingSource",
    "Settings",
    "default_home",
    "environment_names",
    "load",
]

_NAMES: Final = {
    "client": "default_home",
    "fields": "Env",
    "loader": "LoadedSettings SettingSource load",
    "model": "Settings environment_names",
    "text_values": "CONFIG_VARIABLE MASK",
}
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
