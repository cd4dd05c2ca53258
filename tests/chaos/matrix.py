"""The chaos matrix: what is done to whom in which phase of a request, and what the request's client then sees.

From this one table come the tests, the runs of `make chaos` and docs/chaos.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from tests.chaos.faults import FAULTS
from tests.chaos.phases import PHASES


class Seen(StrEnum):
    """What a client sees of it."""

    WHOLE = "whole"
    """Status 200 and the very answer of an undisturbed mesh, perhaps later."""
    ERROR = "error"
    """An answer that says that it failed: the beginning of the right one at most, never an end."""
    GONE = "gone"
    """Nothing: the client is no more. What was held for it is free."""


class Row(NamedTuple):
    """A kind of process."""

    name: str
    has_shared_index: bool = False
    """Whether it takes part in a mesh with two kvstores on one Valkey; else in one with a kvstore alone."""


class Cell(NamedTuple):
    """One field of the matrix."""

    row: str
    fault: str
    phase: str

    @property
    def id(self) -> str:
        return f"{self.row}, {self.fault}, {self.phase}"


ROWS: Final = (
    Row("gateway"),
    Row("router"),
    Row("prefill worker"),
    Row("decode worker"),
    Row("kvstore"),
    Row("client"),
    Row("prefill engine"),
    Row("decode engine"),
    Row("kvstore replica", has_shared_index=True),
    Row("Valkey", has_shared_index=True),
)

_WHOLE: Final = frozenset({Seen.WHOLE})
_ERROR: Final = frozenset({Seen.ERROR})
_GONE: Final = frozenset({Seen.GONE})

_ON_ONE_MACHINE: Final = "an engine and its worker share a machine and talk over a pipe"
_ENDS_TOGETHER: Final = "its worker starts and ends it; see the worker's row"
_NAMED: Final = "it is asked by those whose command lines name it; a worker whose blocks it would mix up is refused by it"

SENSELESS: Final[Mapping[tuple[str, str], str]] = {
    ("prefill engine", "partition"): _ON_ONE_MACHINE,
    ("decode engine", "partition"): _ON_ONE_MACHINE,
    ("prefill engine", "slow link"): _ON_ONE_MACHINE,
    ("decode engine", "slow link"): _ON_ONE_MACHINE,
    ("prefill engine", "full disk"): "it writes to its worker's log",
    ("decode engine", "full disk"): "it writes to its worker's log",
    ("prefill engine", "restart"): _ENDS_TOGETHER,
    ("decode engine", "restart"): _ENDS_TOGETHER,
    ("client", "full disk"): "its logs are its own",
    ("client", "restart"): "the same as kill -9: it asks anew",
    ("Valkey", "full disk"): "its logs are its own",
    ("gateway", "wrong version"): "it passes bodies on, and knows nothing of what is in them",
    (
        "router",
        "wrong version",
    ): "it is asked by the gateway alone, whose command line names it; one that hashes blocks "
    "otherwise than its workers says so (tests/mesh/test_wide_mesh.py)",
    ("kvstore", "wrong version"): _NAMED,
    ("kvstore replica", "wrong version"): _NAMED,
    (
        "Valkey",
        "wrong version",
    ): "one that is too old is refused at the start (tests/contract/test_index_setting.py)",
    ("prefill engine", "wrong version"): _ENDS_TOGETHER,
    ("decode engine", "wrong version"): _ENDS_TOGETHER,
    ("client", "wrong version"): "what is no longer served is refused by name (docs/openai-api.md)",
}
"""Why there is nothing to test, by row and fault."""

EXPECTED: Final[Mapping[tuple[str, str], frozenset[Seen]]] = {
    # Whoever holds the client's connection, or its half of the stream, takes it along.
    ("gateway", "kill -9"): _ERROR,
    # What had not begun to be answered may be asked again by the gateway itself.
    ("gateway", "SIGSTOP 10 s"): _WHOLE | _ERROR,
    ("gateway", "partition"): _ERROR,
    ("router", "kill -9"): _ERROR,
    ("router", "SIGSTOP 10 s"): _ERROR,
    ("router", "partition"): _ERROR,
    # The grace period may be too short for what runs.
    ("gateway", "restart"): _WHOLE | _ERROR,
    ("router", "restart"): _WHOLE | _ERROR,
    ("client", "kill -9"): _GONE,
}
"""By row and fault, for all phases; everywhere else the answer is whole."""

EXPECTED_IN: Final[Mapping[Cell, frozenset[Seen]]] = {
    # All of it may be in the client's socket by then.
    **{
        Cell(row, fault, "finishing"): _WHOLE | _ERROR
        for row, fault in (
            ("gateway", "kill -9"),
            ("gateway", "partition"),
            ("router", "kill -9"),
            ("router", "SIGSTOP 10 s"),
            ("router", "partition"),
        )
    },
    # The gateway asks another router; the text of 3 MB of the phase before is more than it keeps for that.
    **{
        Cell("router", fault, phase): _WHOLE
        for fault in ("kill -9", "SIGSTOP 10 s", "partition")
        for phase in ("queued", "waiting for prefill", "in prefill")
    },
    # The first token, which comes before the KV, has reached the gateway or not.
    **{
        Cell("router", fault, "receiving KV"): _WHOLE | _ERROR
        for fault in ("kill -9", "SIGSTOP 10 s", "partition")
    },
    # It asks again until the cable is plugged in, or gives up before.
    **{
        Cell("gateway", "partition", phase): _WHOLE | _ERROR
        for phase in ("queued", "waiting for prefill", "in prefill", "receiving KV")
    },
}
"""Where a phase makes a difference."""


def expected(cell: Cell) -> frozenset[Seen]:
    """What may be seen in a cell."""
    return EXPECTED_IN.get(cell, EXPECTED.get((cell.row, cell.fault), _WHOLE))


def cells() -> list[Cell]:
    """All that make sense, in an order in which nobody dies again soon: who does waits longer to be started again."""
    return [
        cell
        for phase in PHASES
        for fault in FAULTS
        for row in ROWS
        if (row.name, fault) not in SENSELESS
        for cell in [Cell(row.name, fault, phase)]
    ]


IN_TESTS: Final = (
    Cell("gateway", "kill -9", "queued"),
    Cell("router", "SIGSTOP 10 s", "tokenizing"),
    Cell("prefill worker", "partition", "receiving KV"),
    Cell("decode worker", "kill -9", "decoding"),
    Cell("kvstore", "restart", "in prefill"),
    Cell("client", "kill -9", "waiting for prefill"),
    Cell("decode engine", "kill -9", "finishing"),
    Cell("router", "full disk", "decoding"),
    Cell("prefill engine", "kill -9", "in prefill"),
    Cell("gateway", "slow link", "decoding"),
    Cell("kvstore replica", "partition", "in prefill"),
    Cell("Valkey", "restart", "queued"),
    Cell("decode worker", "wrong version", "queued"),
)
"""Those that `make test` plays: each row, fault and phase at least once."""


def cells_in_tests(has_shared_index: bool) -> list[Cell]:
    """Those of one of the two meshes."""
    rows = {row.name for row in ROWS if row.has_shared_index == has_shared_index}
    return [cell for cell in IN_TESTS if cell.row in rows]
