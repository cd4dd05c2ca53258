"""The file of rates for `pagemesh sim --rates`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import yaml

from pagemesh.sim.model import MeshModel


def write_rates(path: Path, model: MeshModel) -> None:
    """A file that says all of a model."""
    path.write_text(yaml.safe_dump(asdict(model), sort_keys=False), encoding="utf-8")
