"""`pagemesh keys new`: makes an API key."""

from __future__ import annotations

import sys
from pathlib import Path

from pagemesh.cli.settings import KeysConfig
from pagemesh.router.tenants.key_file_edit import add_key
from pagemesh.router.tenants.keys import hash_of, new_key


def run(config: KeysConfig) -> None:
    """Print a new key, alone on the standard output, and put its hash into the file if there is one.

    Raises ConfigError, without a key, for a file that cannot be used.
    """
    key = new_key()
    if config.file is None:
        lines = [
            "The key is shown this once. For a key file (--api-key-file), with --file put there at once:",
            "tenants:",
            f"  {config.tenant}:",
            "    keys:",
            f"      - {hash_of(key)}",
        ]
    else:
        add_key(Path(config.file), config.tenant, hash_of(key))
        lines = [
            f"The key is shown this once; {config.file} has its hash, as a key of {config.tenant}."
        ]
    print(key, flush=True)
    print("\n".join(lines), file=sys.stderr)
