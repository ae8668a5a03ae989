"""Builds the pages into the wheel. An editable installation has none: `make install` builds them beside it."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesHook(BuildHookInterface[Any]):
    """Runs `pages/build.py` before a wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the pages, unless they were built before the sources were copied to where no checkout is."""
        if version == "editable":
            return
        build_data["artifacts"].append("/gateway/static/**")
        script = Path(self.root) / "pages" / "build.py"
        spec = importlib.util.spec_from_file_location("pages_build", script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.DOCUMENT.exists() or not (module.STATIC / "index.html").exists():
            module.build()
