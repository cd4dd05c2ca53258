"""Whole numbers beyond 2^53 in schemas: as asked for, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.guidance import GuidanceBackend
from pagemesh.sampling.structured.outputs import StructuredOutputs
from pagemesh.sampling.structured.schemas import round_bounds
from tests.unit.sampling.structured.test_guidance import EOS, VOCAB_SIZE, fits, start

E53, E63 = 2**53, 2**63
LARGEST = E63 - 1024


@pytest.fixture(scope="module")
def backend(demo_model: Path) -> GuidanceBackend:
    return GuidanceBackend(demo_model, VOCAB_SIZE, EOS)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_model / "tokenizer.json"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (E53 + 1, "9007199254740993"),
        (-E53 - 1, "-9007199254740993"),
        (1234567890123456789, "1234567890123456789"),
        (E63 - 1, "9223372036854775807"),
        (-E63, "-9223372036854775808"),
        (10**30, "1000000000000000000000000000000"),
        (10**400, "a number of 401 digits"),
        ([1, [E53 + 1]], "9007199254740993"),
        ({"a": -E63}, "-9223372036854775808"),
    ],
)
@pytest.mark.parametrize("key", ["const", "enum"])
def test_a_value_that_would_become_another_one_is_refused(key: str, value: Any, shown: str) -> None:
    schema = {"properties": {"n": {key: value if key == "const" else ["a", value]}}}
    for text in (json.dumps(schema), None):
        outputs: dict[str, Any] = {"json": text or schema}
        if text is not None:
            inline: dict[str, Any] = {"grammar": f"start: %json {text}"}
            with pytest.raises(
                InvalidRequestError, match=r"a schema of structured_outputs\.grammar"
            ):
                StructuredOutputs.of(**inline)
        with pytest.raises(InvalidRequestError) as caught:
            StructuredOutputs.of(**outputs)
        assert caught.value.param == "structured_outputs"
        assert f"structured_outputs.json asks for {shown}, but" in caught.value.message


@pytest.mark.parametrize(
    "value", [E53, -E53, E53 + 2, LARGEST, -LARGEST, 10**20, 1e300, 0.1, True, "9007199254740993"]
)
def test_a_value_that_is_kept_is_the_answer(
    backend: GuidanceBackend, tokenizer: Tokenizer, value: Any
) -> None:
    assert fits(
        start(backend, json={"enum": ["a", value]}),
        tokenizer,
        json.dumps(value).replace("1e+300", "1" + "0" * 300),
    )
    assert not fits(start(backend, json={"const": value}), tokenizer, '"a"')


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        # Those of int64 and uint64, as type checkers write them.
        ({"minimum": -E63, "maximum": E63 - 1}, [-LARGEST, 0, LARGEST], []),
        ({"minimum": 0, "maximum": 2**64 - 1}, [0, 2**62, LARGEST], [-1, 2**64]),
        ({"minimum": E53 + 1}, [E53 + 2], [E53, E53 + 1]),
        ({"maximum": -E53 - 1}, [-E53 - 2], [-E53, -E53 - 1]),
        ({"exclusiveMinimum": E53}, [E53 + 2], [E53]),
        ({"exclusiveMinimum": E53 + 1}, [E53 + 2], [E53 + 1]),
        ({"exclusiveMinimum": E53 + 2}, [E53 + 4], [E53 + 2, E53 + 3]),
        ({"exclusiveMaximum": E63}, [LARGEST], [E63]),
        # Written as numbers that need not be whole.
        ({"exclusiveMinimum": 1e17}, [10**17 + 16], [10**17]),
        ({"exclusiveMaximum": -1e17}, [-(10**17) - 16], [-(10**17)]),
        ({"minimum": -1e19}, [-LARGEST, 0], []),
        ({"minimum": E53 + 1, "exclusiveMinimum": True}, [E53 + 2], [E53 + 1]),
        ({"minimum": 5, "exclusiveMinimum": E53 + 1}, [E53 + 2], [5, E53 + 1]),
        ({"minimum": 5, "exclusiveMinimum": -E63}, [5], [4]),
    ],
)
def test_bounds_are_never_crossed(
    backend: GuidanceBackend,
    tokenizer: Tokenizer,
    schema: dict[str, Any],
    inside: list[int],
    outside: list[int],
) -> None:
    """What is not kept becomes a little narrower; in a grammar likewise."""
    schema = {"type": "integer", **schema}
    for outputs in ({"json": schema}, {"grammar": f"start: %json {json.dumps(schema)}"}):
        for number in inside:
            assert fits(start(backend, **outputs), tokenizer, str(number)), number
        for number in outside:
            assert not fits(start(backend, **outputs), tokenizer, str(number)), number


@pytest.mark.parametrize(
    "schema", [{"minimum": 5.5, "maximum": E53, "exclusiveMaximum": False}, {}]
)
def test_bounds_that_are_kept_stay(schema: dict[str, Any]) -> None:
    before = dict(schema)
    round_bounds(schema)
    assert schema == before


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"type": "integer", "minimum": E63},
            "the minimum 9223372036854775808, but whole numbers have at most 64 bits",
        ),
        (
            {"type": "integer", "exclusiveMaximum": -1e19},
            r"the exclusiveMaximum -1e\+19, but whole",
        ),
        ({"type": "integer", "minimum": 10**400}, "the minimum a number of 401 digits, but whole"),
        (
            {"type": "number", "maximum": 1e300},
            r"the maximum 1e\+300, but bounds of numbers are less than 1e\+16",
        ),
        (
            {"type": ["null", "number"], "minimum": -(10**16)},
            "the minimum -10000000000000000, but bounds",
        ),
        ({"exclusiveMinimum": 1e16}, r"the exclusiveMinimum 1e\+16, but bounds"),
    ],
)
def test_bounds_that_leave_no_number_are_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        StructuredOutputs.of(json=schema)


def test_numbers_that_are_not_whole_have_smaller_bounds(
    backend: GuidanceBackend, tokenizer: Tokenizer
) -> None:
    schema = {"type": "number", "minimum": 10**16 - 2}
    assert fits(start(backend, json=schema), tokenizer, f"{10**16 - 2}.5")
    assert not fits(start(backend, json=schema), tokenizer, f"{10**16 - 3}.5")
