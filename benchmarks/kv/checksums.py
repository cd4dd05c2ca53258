"""Workers without checksums, to see what those cost. Only here: a mesh has no such switch."""

from __future__ import annotations

import xxhash


class _NoDigest:
    """Takes bytes as a hash object does, and looks at none."""

    def __init__(self, data: object = b"", seed: int = 0) -> None:
        pass

    def update(self, data: object) -> None:
        """Ignore them."""

    def intdigest(self) -> int:
        """The same for all."""
        return 0


def leave_out_checksums() -> None:
    """Have all checksums of this process be zero; before it makes any."""
    setattr(xxhash, "xxh3_64", _NoDigest)  # noqa: B010 mypy knows xxhash's own types
