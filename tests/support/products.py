"""Products of parameters: `make test` runs the pairs that have found bugs and a sample, `make test-all` the whole.

    @pytest.mark.product(found_bugs=["bfloat16-MQA"], sample=12)

A sample has each value of each parameter at least once, fixtures' included, and at least `sample` items; of what takes
long, `most` are drawn beside those that found bugs, though values are missing then.

    pytestmark = pytest.mark.costly

Of the files, or tests, that start whole meshes or engines to show one thing, one of 48 is drawn. What is not marked
runs each time: same tokens on every path, nothing leaked when somebody is killed, what clients see.

The seed is drawn anew for each run and printed; the same PAGEMESH_TEST_SEED gives the same items. What is named runs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, TypeVar

import pytest
from _pytest.mark import ParameterSet

_V = TypeVar("_V", bound=Hashable)

_VARIABLE: Final = "PAGEMESH_TEST_SEED"

_ONE_OF: Final = 48
"""Costly files."""

# Set, so that the processes that run the tests choose what the one that began them would.
SEED: Final = os.environ.setdefault(_VARIABLE, str(random.SystemRandom().randrange(1_000_000)))

HEADER: Final = f"products of parameters, and costly tests, are sampled by {_VARIABLE}={SEED}"


def mark_the_rest(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark as exhaustive what is in no product's sample, unless items are asked for one by one; and the costly files
    that were not drawn, unless files are."""
    if config.getoption("lf", False) or any("[" in argument for argument in config.args):
        return
    if not any(".py" in argument for argument in config.args):
        _mark_costly(items)
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.get_closest_marker("product")
            and not item.get_closest_marker("exhaustive")
        ):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, product in products.items():
        mark = product[0].get_closest_marker("product")
        assert mark is not None
        kept = set(sample(name, product, SEED, **mark.kwargs))
        for item in product:
            if item not in kept:
                item.add_marker(pytest.mark.exhaustive)


def put_costly_first(items: list[pytest.Item]) -> None:
    """Files are shared among processes: none shall still have a long one when the others are done."""
    costly = {item.path for item in items if item.get_closest_marker("costly")}
    items.sort(key=lambda item: item.path not in costly)


def _mark_costly(items: Iterable[pytest.Item]) -> None:
    costly: dict[str, list[pytest.Item]] = {}
    for item in items:
        for node, _ in item.iter_markers_with_node("costly"):
            costly.setdefault(node.nodeid.partition("[")[0], []).append(item)
    names = sorted(costly)
    random.Random(f"{SEED} costly").shuffle(names)
    for name in names[: len(names) - len(names) // _ONE_OF]:
        for item in costly[name]:
            item.add_marker(pytest.mark.exhaustive)


def sample(
    name: str,
    product: Sequence[pytest.Function],
    seed: str,
    *,
    found_bugs: Sequence[str] = (),
    sample: int = 0,
    most: int | None = None,
) -> list[pytest.Function]:
    """The items that run each time, and those that this seed draws."""
    by_id = {item.callspec.id: item for item in product}
    if unknown := [name for name in found_bugs if name not in by_id]:
        raise pytest.UsageError(f"{name} has no {', '.join(unknown)}; it has {', '.join(by_id)}")
    drawn = [item for item in product if item.callspec.id not in found_bugs]
    random.Random(f"{seed} {name}").shuffle(drawn)
    # First those that have a value which none before them has.
    seen: set[tuple[str, int]] = set()
    first: list[pytest.Function] = []
    others: list[pytest.Function] = []
    for item in [*(by_id[name] for name in found_bugs), *drawn]:
        # A product's items share their values, which may be of any kind.
        values = {(name, id(value)) for name, value in item.callspec.params.items()}
        (others if values <= seen and item.callspec.id not in found_bugs else first).append(item)
        seen |= values
    num_kept = max(len(first), sample) if most is None else len(found_bugs) + most
    return [*first, *others][:num_kept]


def drawn(
    name: str, values: Sequence[_V], always: Sequence[_V], num_others: int
) -> list[ParameterSet]:
    """Values of a fixture that takes long to make: some always, so many others by the seed, the rest as exhaustive."""
    others = [value for value in values if value not in always]
    kept = {*always, *random.Random(f"{SEED} {name}").sample(others, num_others)}
    return [
        pytest.param(value, marks=[] if value in kept else pytest.mark.exhaustive)
        for value in values
    ]
