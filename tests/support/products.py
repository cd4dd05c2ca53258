"""Products of parameters: `make test` runs the pairs that have found bugs and a sample, `make test-all` the whole.

    @pytest.mark.product(found_bugs=["bfloat16-MQA"], sample=12)

A sample has each value of each parameter at least once, fixtures' included, and at least `sample` items. Its seed is
drawn anew for each run and printed; the same PAGEMESH_TEST_SEED gives the same items.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import Final

import pytest

_VARIABLE: Final = "PAGEMESH_TEST_SEED"

# Set, so that the processes that run the tests choose what the one that began them would.
SEED: Final = os.environ.setdefault(_VARIABLE, str(random.SystemRandom().randrange(1_000_000)))

HEADER: Final = f"products of parameters are sampled by {_VARIABLE}={SEED}"


def mark_the_rest(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark as exhaustive what is in no product's sample, unless items are asked for one by one."""
    if config.getoption("lf", False) or any("[" in argument for argument in config.args):
        return
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("product"):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, product in products.items():
        mark = product[0].get_closest_marker("product")
        assert mark is not None
        kept = set(sample(name, product, SEED, **mark.kwargs))
        for item in product:
            if item not in kept:
                item.add_marker(pytest.mark.exhaustive)


def sample(
    name: str,
    product: Sequence[pytest.Function],
    seed: str,
    *,
    found_bugs: Sequence[str] = (),
    sample: int = 0,
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
    return [*first, *others[: max(0, sample - len(first))]]
