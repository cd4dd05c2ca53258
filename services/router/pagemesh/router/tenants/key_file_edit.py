"""Adds a key to a key file, and leaves everything else there as people wrote it, comments too."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from pagemesh.errors import ConfigError
from pagemesh.router.tenants.key_file import read_content, tenants_by_key
from pagemesh.router.tenants.tenant import Limits


def add_key(path: Path, tenant: str, key_hash: str) -> None:
    """Have a file name one more key of a tenant; both are made when they are not there.

    The file is replaced at once: who reads it finds all of the old or all of the new one. ConfigError when it
    cannot be used as it is, or not be written.
    """
    target = path.resolve()
    try:
        text = target.read_text(encoding="utf-8") if target.exists() else ""
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file is {str(path)!r}, which cannot be read: {error}") from error
    try:
        tenants_by_key(read_content(text), Limits())
        new = with_key(text, tenant, key_hash)
        # A tenant's name comes from the command line.
        tenants_by_key(read_content(new), Limits())
    except ConfigError as error:
        raise ConfigError(f"--file is {str(path)!r}: {error.message}") from error
    try:
        _replace(target, new, mode)
    except OSError as error:
        raise ConfigError(f"--file is {str(path)!r}: {error.strerror}") from error


def with_key(text: str, tenant: str, key_hash: str) -> str:
    """The text of a usable key file with one more key."""
    wanted: dict[str, Any] = yaml.safe_load(text) or {}
    tenants = wanted.setdefault("tenants", {})
    tenants.setdefault(tenant, {}).setdefault("keys", []).append(key_hash)
    if text.lstrip().startswith("{"):
        return json.dumps(wanted, indent=2) + "\n"
    new = _inserted(text, tenant, key_hash)
    # What is written in another style than the usual is written anew.
    return new if _says(new, wanted) else yaml.safe_dump(wanted, sort_keys=False)


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == wanted)
    except yaml.YAMLError:
        return False


def _inserted(text: str, tenant: str, key_hash: str) -> str:
    """With a line below the tenant's last key, or lines below the last tenant."""
    lines = text.splitlines()
    root = yaml.compose(text, yaml.SafeLoader)
    tenants = _value(root, "tenants")
    keys = _value(_value(tenants, tenant), "keys")
    if isinstance(keys, yaml.SequenceNode) and keys.value:
        last = keys.value[-1]
        dash = lines[last.start_mark.line][: last.start_mark.column]
        added, below = [dash + key_hash], last.end_mark.line
    elif isinstance(tenants, yaml.MappingNode) and tenants.value:
        indent = " " * tenants.value[0][0].start_mark.column
        added = [f"{indent}{tenant}:", f"{indent}  keys:", f"{indent}    - {key_hash}"]
        below = _last_line(tenants)
    else:
        added = ["tenants:", f"  {tenant}:", "    keys:", f"      - {key_hash}"]
        below = len(lines) - 1
    return "\n".join([*lines[: below + 1], *added, *lines[below + 1 :]]) + "\n"


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _last_line(node: yaml.Node) -> int:
    """On which a node's last value stands; a block's own end is where the next one begins."""
    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return _last_line(node.value[-1])
    return node.end_mark.line


def _replace(path: Path, text: str, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        new.chmod(mode)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
