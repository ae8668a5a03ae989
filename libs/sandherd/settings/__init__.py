"""Every setting, once: its name, its environment variable, its default and meaning, and where its value is from."""

from sandherd.settings.fields import Env
from sandherd.settings.loading import Loaded, Source, load
from sandherd.settings.model import Settings, default_home, environment_names
from sandherd.settings.texts import CONFIG_VARIABLE, MASK

__all__ = [
    "CONFIG_VARIABLE",
    "MASK",
    "Env",
    "Loaded",
    "Settings",
    "Source",
    "default_home",
    "environment_names",
    "load",
]
