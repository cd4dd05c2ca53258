"""Descriptions of outputs that are made to explode: refused by their numbers, or harmless."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.sampling.structured.guidance import GuidanceBackend
from pagemesh.sampling.structured.outputs import StructuredOutputs

VOCAB_SIZE = 2048
EOS = (2, 0)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubled(depth: int) -> dict[str, Any]:
    """2**depth properties, by references."""
    links = {
        f"d{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "xy"},
        }
        for level in range(depth)
    }
    return {"$defs": {**links, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            {"json": nested(60)},
            "structured_outputs.json is nested 101 deep, but at most 100 are allowed",
        ),
        (
            {"json": nested(5000)},
            "structured_outputs.json is nested 101 deep, but at most 100 are allowed",
        ),
        (
            {"json": {"enum": list(range(10_001))}},
            "structured_outputs.json has 10001 in one enum, but at most 10000 are allowed",
        ),
        (
            {"json": {"anyOf": [{"const": n} for n in range(501)]}},
            "structured_outputs.json has 501 in one anyOf, but at most 500 are allowed",
        ),
        (
            {"json": {"properties": {"a": {"type": "string", "pattern": "a{1,100000}"}}}},
            "a pattern of structured_outputs.json repeats something 100000 times, but at most 10000 are allowed",
        ),
        (
            {"json": {"properties": {f"p{n}": {} for n in range(602)}, "required": ["p1"]}},
            "structured_outputs.json has 601 optional properties in one object, but at most 600 are allowed",
        ),
        (
            {"json": {"type": "integer", "multipleOf": 999_983}},
            "a multipleOf of structured_outputs.json has 6 digits, but at most 4 are allowed",
        ),
        (
            {"choice": [str(n) for n in range(10_001)]},
            "structured_outputs.choice has 10001 texts, but at most 10000 are allowed",
        ),
        (
            {"regex": "a{1,100000}"},
            "structured_outputs.regex repeats something 100000 times, but at most 10000 are allowed",
        ),
        (
            {"regex": "a{" + "9" * 5000 + "}"},
            "structured_outputs.regex repeats something 999999999999 times, but at most 10000 are allowed",
        ),
        (
            {"regex": "(" * 101 + ")" * 101},
            "structured_outputs.regex is nested 101 deep, but at most 100 are allowed",
        ),
        (
            {"grammar": 'start: "a"~1..100000'},
            "structured_outputs.grammar repeats something 100000 times, but at most 10000 are allowed",
        ),
        (
            {"json": {}, "whitespace_pattern": " |" * 513},
            "structured_outputs.whitespace_pattern has 1026 characters, but at most 1024 are allowed",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else next(iter(case)),
)
def test_what_is_too_much_is_refused_by_its_number(what: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        StructuredOutputs.of(**what)
    assert (error.value.message, error.value.param) == (message, "structured_outputs")


@pytest.mark.parametrize(
    "what",
    [
        {"json": nested(49)},
        {"json": {"enum": list(range(10_000))}},
        {"json": {"properties": {"anyOf": {"type": "string"}, "enum": {"type": "string"}}}},
        {"json": {"type": "string", "maxLength": 100_000}},
        {"json": {"type": "number", "multipleOf": 0.01, "enum": [1_000_000]}},
        {"json": {"type": "number", "multipleOf": 1_000_000}},
        {"regex": r"a{1,10000}\(\(\("},
    ],
    ids=lambda case: case if isinstance(case, str) else next(iter(case)),
)
def test_what_is_much_is_not_refused(what: dict[str, Any]) -> None:
    assert StructuredOutputs.of(**what)


@pytest.mark.parametrize(
    "what",
    [
        {"regex": "[a-z]{1,10000}x"},
        {"regex": "(([a-c]{1,1000}){1,1000}){1,1000}"},
        {"regex": "(a|b)*a(a|b){200}"},
        {"regex": "|".join(f"w{n}.*x" for n in range(1500))},
        {"json": {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000}},
        {"json": {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}},
        {"json": {"type": "string", "pattern": "^(([a-z]{1,1000}){1,1000})$"}},
        {
            "json": {
                "anyOf": [{"properties": {f"k{n}": {"pattern": ".*x.{50}"}}} for n in range(500)]
            }
        },
        {"json": doubled(40)},
        {"json": {"type": "integer", "multipleOf": 9973, "maximum": 10**30}},
        {"choice": [f"c{n}" for n in range(10_000)]},
        {"grammar": 'start: start start | "a" | "b" |'},
        {"json": {"type": "object"}, "whitespace_pattern": "(a{1,1000}){1,1000}"},
    ],
    ids=lambda case: case if isinstance(case, str) else next(iter(case)),
)
def test_what_passes_takes_neither_time_nor_memory(what: dict[str, Any], demo_model: Path) -> None:
    """Neither to compile nor in the steps of its answer; a refusal is an answer, too."""
    backend = GuidanceBackend(demo_model, VOCAB_SIZE, EOS)
    before = psutil.Process().memory_info().rss
    took: list[float] = []

    def compile_and_step() -> None:
        began_at = time.thread_time()
        try:
            grammar = backend.compile(StructuredOutputs.of(**what))
            took.append(time.thread_time() - began_at)
            constraint, draw = grammar.start(), random.Random(1)
            mask = np.zeros(VOCAB_SIZE // 32, dtype=np.int32)
            for _ in range(30):
                began_at = time.thread_time()
                constraint.fill_mask(mask)
                took.append(time.thread_time() - began_at)
                words = mask.view(np.uint32)
                allowed = [n for n in range(VOCAB_SIZE) if words[n // 32] >> (n % 32) & 1]
                constraint.accept(draw.choice(allowed))
                if constraint.is_over:
                    break
        except InvalidRequestError:
            took.append(time.thread_time() - began_at)

    # A thread of its own, as the compiler has it, so that it is its time alone that is measured.
    thread = threading.Thread(target=compile_and_step)
    thread.start()
    thread.join()
    assert took
    assert max(took) < 2.0
    assert psutil.Process().memory_info().rss - before < 256 * 2**20
