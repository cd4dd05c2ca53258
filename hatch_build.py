"""Puts the demo model into the wheel, where `pagemesh.config.served` finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FILES = ("*.json", "*.jinja", "model.safetensors")
"""What is loaded, not what it was made with."""


class DemoModel(BuildHookInterface[Any]):
    """An editable install has no copy: it finds the checkout's."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to what the wheel holds; `version` is the kind of it."""
        if version == "editable":
            return
        folder = Path(self.root, "models/demo")
        for path in sorted(path for pattern in _FILES for path in folder.glob(pattern)):
            build_data["force_include"][str(path)] = f"pagemesh/models/demo/{path.name}"
