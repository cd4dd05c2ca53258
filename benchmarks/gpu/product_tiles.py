"""Tiles that are worth a look, by the number of rows."""

from __future__ import annotations

from typing import NamedTuple

from pagemesh.kernels.linear.tiles import Tiles


class Change(NamedTuple):
    """What is other than today; None leaves it."""

    block_out: int | None = None
    block_t: int | None = None
    block_k: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    is_split: bool | None = None

    @property
    def name(self) -> str:
        """What is changed."""
        return " ".join(
            f"{key}={value}" for key, value in self._asdict().items() if value is not None
        )

    def apply(self, today: Tiles) -> Tiles:
        """Tiles with the change."""
        changed = {key: value for key, value in self._asdict().items() if value is not None}
        return today._replace(**changed)


_FEW = (
    # Programs that read all segments, deep enough ahead.
    Change(64, None, 128, 4, 6, False),
    Change(64, None, 128, 4, 4, False),
    # The same tile with other depths of prefetch.
    Change(64, None, 128, 4, 3),
    Change(64, None, 64, 4, 6),
    Change(64, None, 64, 4, 4),
    # Wider, so that tokens are read half as often.
    Change(128, None, 64, 4, 4),
    Change(128, None, 64, 8, 4),
    Change(128, None, 128, 8, 3),
)
_FEW_GATED = (
    Change(128, None, 64, 8, 3),
    Change(64, None, 64, 4, 4),
    Change(64, None, 64, 4, 3),
    Change(64, None, 128, 4, 3),
    Change(128, None, 64, 4, 3),
)
_SOME = (
    # Two programs on a multiprocessor.
    Change(128, 128, 64, 8, 3, False),
    Change(128, 128, 64, 4, 3, False),
    Change(128, None, 64, 8, 4, True),
    Change(64, None, 64, 4, 4, False),
    Change(64, None, 64, 4, 4, True),
    Change(128, 64, 64, 4, 4, False),
    Change(64, 64, 128, 4, 3, False),
    Change(128, None, 64, 8, 4, False),
)
_SOME_GATED = (
    Change(64, None, 64, 4, 4),
    Change(64, None, 64, 8, 4),
    Change(128, 64, 64, 8, 3),
    Change(128, None, 64, 8, 3),
)
_MANY = (
    Change(128, 256, 64, 8, 3, False),
    Change(128, 256, 64, 8, 4, False),
    Change(256, 128, 64, 8, 3, False),
    Change(128, 128, 128, 8, 3, False),
    Change(128, 128, 64, 4, 4, False),
    Change(128, 128, 64, 8, 3, False),
)
_MANY_GATED = (
    Change(64, 256, 64, 8, 3),
    Change(128, 128, 64, 8, 3),
    Change(64, 128, 64, 4, 4),
    Change(128, 128, 64, 8, 4),
)


def changes_for(num_rows: int, *, is_gated: bool) -> tuple[Change, ...]:
    """The most promising first."""
    if num_rows <= 64:
        few = _FEW_GATED if is_gated else _FEW
        return few if num_rows >= 32 else few[:4]
    if num_rows <= 2048:
        return _SOME_GATED if is_gated else _SOME
    return _MANY_GATED if is_gated else _MANY
