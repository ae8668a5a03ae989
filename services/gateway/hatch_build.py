"""Builds the pages into the wheel. It does not for an editable installation: `make install` builds them for that."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PagesHook(BuildHookInterface[Any]):
    """Runs `pages/build.py` before a wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the pages, unless the sources were copied out of the checkout together with built pages."""
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
