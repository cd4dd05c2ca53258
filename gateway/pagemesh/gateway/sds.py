"""Certificates that Envoy takes anew when their files are replaced.

Envoy watches files of certificates only when a file of its own, an SDS resource, names them. These
name paths alone and no secrets, and lie in a folder of this user under a name made from what they say:
a gateway with the same settings finds them again, and none piles up.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from pagemesh.errors import ConfigError
from pagemesh.gateway.names import TYPE


def file_source(path: str) -> dict[str, str]:
    """Envoy's `DataSource` for a file."""
    return {"filename": str(Path(path).absolute())}


def secret_source(name: str, kind: str, secret: dict[str, Any]) -> dict[str, Any]:
    """Envoy's `SdsSecretConfig` for a secret of this kind; writes the file that it refers to. ConfigError if it cannot."""
    resource = {"@type": TYPE + "transport_sockets.tls.v3.Secret", "name": name, kind: secret}
    path = _write(name, json.dumps({"resources": [resource]}))
    source = {"resource_api_version": "V3", "path_config_source": {"path": str(path)}}
    return {"name": name, "sds_config": source}


def _write(name: str, text: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"pagemesh-gateway-{os.getuid()}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    path = folder / f"{name}-{digest}.json"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise ConfigError(f"{folder} must be a folder that this user alone can write")
        if not path.exists() or path.read_text() != text:
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(text)
            partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return path
