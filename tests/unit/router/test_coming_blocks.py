"""Blocks that are computed somewhere and in nobody's index yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.router.routing import coming_blocks
from pagemesh.router.routing.coming_blocks import ComingBlocks
from tests.fakes.clock import FakeClock


def chain(text: str) -> list[bytes]:
    """Names of blocks: equal for equal beginnings."""
    return [text[: index + 1].encode() for index in range(len(text))]


def test_what_is_computed_somewhere_is_coming_there() -> None:
    coming = ComingBlocks(FakeClock())
    coming.add("a", chain("system one"))
    coming.add("b", chain("sys"))
    assert coming.extend([chain("system two")], {}) == {"a": 7, "b": 3}
    assert coming.extend([chain("other")], {}) == {}
    assert len(coming) == 13


def test_what_is_coming_goes_on_where_the_index_ends() -> None:
    coming = ComingBlocks(FakeClock())
    coming.add("a", chain("system one")[4:])
    held = {"a": 4, "b": 2, "c": 9}
    assert coming.extend([chain("system two")], held) == {"a": 7, "b": 2, "c": 9}
    # Without its beginning, nothing of it is of use.
    assert coming.extend([chain("system two")], {}) == {}


def test_blocks_linger_until_the_index_knows_them() -> None:
    clock = FakeClock()
    coming = ComingBlocks(clock)
    note = coming.add("a", chain("abc"))
    assert note is not None
    clock.advance(100)
    assert coming.extend([chain("abc")], {}) == {"a": 3}
    coming.settle(note)
    clock.advance(0.9)
    assert coming.extend([chain("abc")], {}) == {"a": 3}
    clock.advance(0.2)
    assert coming.extend([chain("abc")], {}) == {}
    assert (len(coming), coming._masks, coming._slots, coming._worker_ids) == (0, {}, {}, {})


def test_a_prompt_that_ends_takes_no_blocks_of_those_before_it_with_it() -> None:
    clock = FakeClock()
    coming = ComingBlocks(clock)
    coming.add("a", chain("abc"))
    second, other = coming.add("a", chain("abde")), coming.add("b", chain("ab"))
    assert second is not None
    assert other is not None
    coming.settle(second)
    coming.settle(other)
    clock.advance(2)
    assert coming.extend([chain("abde")], {}) == {"a": 2}


def test_the_same_prompt_again_is_nothing_new() -> None:
    coming = ComingBlocks(FakeClock())
    coming.add("a", chain("abc"))
    assert coming.add("a", chain("abc")) is None
    assert coming.add("a", []) is None


def test_what_is_noted_is_bounded() -> None:
    coming = ComingBlocks(FakeClock())
    half = [number.to_bytes(16, "big") for number in range(coming_blocks.MAX_BLOCKS // 2)]
    assert coming.add("a", half) is not None
    assert coming.add("b", half) is not None
    assert coming.add("c", [b"one more"]) is None
    assert coming.extend([half], {}) == {"a": 131072, "b": 131072}


def test_names_of_other_kinds_of_workers_are_other_chains() -> None:
    coming = ComingBlocks(FakeClock())
    coming.add("a", chain("ab"))
    coming.add("b", chain("xyz"))
    assert coming.extend([chain("abc"), chain("xyz")], {"b": 1}) == {"a": 2, "b": 3}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.text("xy", min_size=1, max_size=5), st.booleans()),
        max_size=12,
    ),
    st.text("xy", min_size=1, max_size=5),
)
def test_it_says_what_a_plain_set_would(prompts: list[tuple[str, str, bool]], prompt: str) -> None:
    clock = FakeClock()
    coming = ComingBlocks(clock)
    owned: dict[str, set[bytes]] = {worker: set() for worker in "abc"}
    for worker, text, ends in prompts:
        new = set(chain(text)) - owned[worker]
        note = coming.add(worker, chain(text))
        assert (note is not None) == bool(new)
        if note is not None and ends:
            coming.settle(note)
            clock.advance(2)
        else:
            owned[worker] |= new
    expected = {}
    for worker, names in owned.items():
        length = next((i for i, name in enumerate(chain(prompt)) if name not in names), len(prompt))
        if length:
            expected[worker] = length
    assert coming.extend([chain(prompt)], {}) == expected
    assert len(coming) == sum(map(len, owned.values()))
