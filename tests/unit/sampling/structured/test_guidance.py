"""Grammars of the library on the demo model's tokenizer: masks, ends, limits, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pagemesh.errors import InvalidRequestError, UnsupportedError
from pagemesh.sampling.structured import matcher
from pagemesh.sampling.structured.constraint import TokenConstraint, start_after
from pagemesh.sampling.structured.guidance import GuidanceBackend
from pagemesh.sampling.structured.outputs import StructuredOutputs

VOCAB_SIZE = 2048
EOS = (2, 0)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_model / "tokenizer.json"))


@pytest.fixture(scope="module")
def backend(demo_model: Path) -> GuidanceBackend:
    return GuidanceBackend(demo_model, VOCAB_SIZE, EOS)


def start(backend: GuidanceBackend, **options: Any) -> TokenConstraint:
    return backend.compile(StructuredOutputs.of(**options)).start()


def allowed(
    constraint: TokenConstraint, *, vocab_size: int = VOCAB_SIZE, avoid: Iterable[int] = ()
) -> set[int]:
    """Ids whose bits are set."""
    mask = np.full(-(-vocab_size // 32), 0x5A5A5A5A, dtype=np.int32)
    constraint.fill_mask(mask, tuple(avoid))
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def fits(constraint: TokenConstraint, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the text can be generated, and can end."""
    for token_id in tokenizer.encode(text).ids:
        if token_id not in allowed(constraint):
            return False
        assert constraint.accept(token_id)
    return set(EOS) <= allowed(constraint)


@pytest.mark.parametrize(
    ("options", "fitting", "unfitting"),
    [
        ({"json": PERSON}, ['{"name":"A","age":3}', '{ "name": "é\\n"}'], ['{"age":3}', "{}", "x"]),
        ({"json": PERSON}, ['{\n  "name": "A",\n  "age": 3\n}'], ['{  "name": "A"}']),
        ({"json": PERSON, "disable_any_whitespace": True}, ['{"name":"A"}'], ['{"name": "A"}']),
        ({"json": PERSON, "whitespace_pattern": "_?"}, ['{"name":_"A"}'], ['{"name": "A"}']),
        ({"json": {}}, ["1", "[null]", '"a"'], ["a"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a"}']),
        ({"regex": "[a-c]+x?"}, ["a", "abcx"], ["", "x", "ad"]),
        ({"regex": "^ab$"}, ["ab"], ["a", "abc"]),
        ({"regex": r"\d{2}\.\d"}, ["12.3"], ["1٢.3", "12.٣"]),
        ({"regex": r"[\w/]+\s\D\W"}, ["a/_ x!"], ["ä x!", "a\u00a0x!", "a 5!", "a xx"]),
        ({"choice": ["yes", "no", 'say "é"\n', "yes, sir"]}, ["yes", "yes, sir"], ["ye", "maybe"]),
        ({"choice": ["yes", 'say "é"\n']}, ['say "é"\n'], ["say"]),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, ["x", "((x))"], ["", "((x)", "()"]),
        ({"grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]+/'}, ["a12"], ["a", "12"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_outputs_are_what_was_asked_for(
    backend: GuidanceBackend,
    tokenizer: Tokenizer,
    options: dict[str, Any],
    fitting: list[str],
    unfitting: list[str],
) -> None:
    grammar = backend.compile(StructuredOutputs.of(**options))
    assert [text for text in fitting if not fits(grammar.start(), tokenizer, text)] == []
    assert [text for text in unfitting if fits(grammar.start(), tokenizer, text)] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "(a"}, "structured_outputs.regex cannot be compiled: .* unclosed group"),
        ({"regex": "a(?=b)"}, "look-around, including look-ahead and look-behind, is not supp"),
        ({"regex": r"[^\s\S]"}, "structured_outputs.regex allows no output"),
        ({"regex": "(a|b)?" * 2500}, "structured_outputs.regex cannot be compiled: lexer"),
        (
            {"json": {"type": "number", "not": {"const": 3}}},
            'these keys are not supported: \\["not"\\]',
        ),
        (
            {"json": {"oneOf": [{"type": "string"}, {"minLength": 2}]}},
            "cannot be compiled: oneOf is only supported where no value can fit two of its alternatives",
        ),
        ({"json": {"type": "whole"}}, "Invalid type: whole"),
        ({"json": {"enum": []}}, "Unsatisfiable schema"),
        (
            {"json": {"$ref": "http://example.org/schema"}},
            "its reference to http://example.org/schema leads out of it, and nothing is fetched",
        ),
        (
            {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
            "structured_outputs.json allows no output: nothing can be written that satisfies it, as wher",
        ),
        ({"json": {}, "whitespace_pattern": "("}, "unclosed group"),
        ({"grammar": "root ::= nobody"}, "Rule 'nobody' not found"),
        ({"grammar": "start: nobody"}, "structured_outputs.grammar cannot be compiled: .*nobody"),
        ({"grammar": "start: " + "(" * 16000}, "nested 16000 deep"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_compiled_is_named(
    backend: GuidanceBackend, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        backend.compile(StructuredOutputs.of(**options))
    assert refused.value.param == "structured_outputs"
    assert len(refused.value.message) < 400
    assert "\n" not in refused.value.message


def test_every_end_of_sequence_ends_a_complete_output(backend: GuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputs.of(regex="ab?"))
    a, b = 67, 68
    assert allowed(grammar.start()) >= {a}
    assert allowed(grammar.start()).isdisjoint(EOS)
    for end in EOS:
        constraint = start_after(grammar, [a])
        assert allowed(constraint) == {b, *EOS}
        assert not constraint.is_over
        assert constraint.accept(end)
        assert constraint.is_over
        # A step in flight still asks; nobody reads what it samples.
        assert allowed(constraint) == set(EOS)
        assert not constraint.accept(end)


def test_tokens_to_avoid_are_allowed_only_where_nothing_else_is(backend: GuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputs.of(regex="ab?"))
    a, b = 67, 68
    assert allowed(start_after(grammar, [a]), avoid=EOS) == {b}
    assert allowed(start_after(grammar, [a]), avoid=(b, *EOS)) == {b, *EOS}
    assert allowed(start_after(grammar, [a, b]), avoid=EOS) == set(EOS)


def test_whether_a_token_may_come_is_told_without_consequences(backend: GuidanceBackend) -> None:
    constraint = start(backend, regex="ab?")
    # Each question takes as long as a token.
    some = {67, 68, *EOS, *range(0, VOCAB_SIZE, 7), VOCAB_SIZE - 1}
    for token_id, following in ((67, {68, *EOS}), (68, set(EOS)), (EOS[0], set())):
        may_come = allowed(constraint)
        assert {i for i in some if constraint.allows(i)} == may_come & some
        assert allowed(constraint) == may_come
        assert constraint.accept(token_id)
        assert {i for i in some if constraint.allows(i)} == following


def test_a_token_that_may_not_come_is_not_accepted(backend: GuidanceBackend) -> None:
    a, b = 67, 68
    for wrong in (b, 2, 0, 1, VOCAB_SIZE - 1):
        constraint = start(backend, regex="ab")
        assert not constraint.accept(wrong)
        assert not constraint.is_over
    constraint = start(backend, regex="ab")
    constraint.accept(b)
    with pytest.raises(InvalidRequestError, match="cannot be continued"):
        allowed(constraint)
    assert constraint.accept(a) is False


def test_a_constraint_that_accepts_the_same_tokens_stands_for_another(
    backend: GuidanceBackend, tokenizer: Tokenizer
) -> None:
    grammar = backend.compile(StructuredOutputs.of(json=PERSON))
    text = json.dumps({"name": "Marie é Curie", "age": 66}, ensure_ascii=False)
    token_ids = tokenizer.encode(text).ids
    whole = grammar.start()
    for index, token_id in enumerate(token_ids):
        assert allowed(start_after(grammar, token_ids[:index])) == allowed(whole)
        assert whole.accept(token_id)


def test_tokens_that_do_not_fit_cannot_be_resumed(backend: GuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputs.of(regex="ab?"))
    a, b = 67, 68
    with pytest.raises(InvalidRequestError, match=rf"resume_token_ids\[1\] is {a}, which"):
        start_after(grammar, [a, a, b])


@pytest.mark.parametrize("vocab_size", [2048, 2049, 2063, 2064, 2079, 2080, 2112, 4096])
def test_ids_of_a_padded_vocabulary_are_never_allowed(demo_model: Path, vocab_size: int) -> None:
    backend = GuidanceBackend(demo_model, vocab_size, EOS)
    constraint = start(backend, regex="(?s:.*)")
    found = allowed(constraint, vocab_size=vocab_size)
    # All that is text, and the ends, but not the third of the special tokens.
    assert set(EOS) <= found
    assert 1 not in found
    assert max(found) < 2048
    assert len(found) > 1900
    assert not constraint.accept(vocab_size - 1) or vocab_size == 2048


def test_ids_that_the_tokenizer_has_and_the_model_lacks_are_never_allowed(
    demo_model: Path,
) -> None:
    for vocab_size in (1983, 1984, 1985, 2015):
        constraint = start(GuidanceBackend(demo_model, vocab_size, EOS), regex="(?s:.*)")
        found = allowed(constraint, vocab_size=vocab_size)
        assert 1900 < len(found) < vocab_size
        assert max(found) < vocab_size


def test_an_output_that_needs_too_much_ends_with_an_error(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "_MAX_LEXER_STATES", 30)
    # The states of the expression are made as they are needed.
    constraint = start(GuidanceBackend(demo_model, VOCAB_SIZE, EOS), regex="a(bc|cd|de|ef){9}")
    with pytest.raises(InvalidRequestError, match="the structured output cannot be continued: "):
        for _ in range(18):
            assert constraint.accept(min(allowed(constraint)))


def test_what_is_found_to_be_too_much_by_a_token_is_said_so(
    demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that the token, which was allowed, is wrong."""
    monkeypatch.setattr(matcher, "_MAX_ROW_ITEMS", 30)
    schema = {"type": "object", "properties": {f"p{n}": {"type": "boolean"} for n in range(20)}}
    constraint = start(GuidanceBackend(demo_model, VOCAB_SIZE, EOS), json=schema)
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    with pytest.raises(
        InvalidRequestError, match=r"the structured output cannot be continued: .*30"
    ):
        for token_id in tokenizer.encode('{"p3": true').ids:
            assert constraint.accept(token_id)


@pytest.mark.parametrize("num_texts", [2_000, 10_000])
def test_many_choices_are_followed_to_their_ends(
    backend: GuidanceBackend, tokenizer: Tokenizer, num_texts: int
) -> None:
    choices = [f"c{n}" for n in range(num_texts)]
    grammar = backend.compile(StructuredOutputs.of(choice=choices))
    for text in (choices[0], choices[777], choices[-1]):
        assert fits(grammar.start(), tokenizer, text)
    assert not fits(grammar.start(), tokenizer, f"c{num_texts}")


def test_an_object_may_have_many_optional_properties(
    backend: GuidanceBackend, tokenizer: Tokenizer
) -> None:
    names = [f"p{n}" for n in range(600)]
    schema = {"properties": {name: {"type": "boolean"} for name in names}, "type": "object"}
    text = json.dumps(dict.fromkeys(names[::7], True), separators=(", ", ": "))
    assert fits(start(backend, json=schema), tokenizer, text)


def test_a_folder_without_tokenizer_is_refused(demo_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"needs .*tokenizer.json, which cannot be read: No"):
        GuidanceBackend(tmp_path, VOCAB_SIZE, EOS)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedError, match=r"is not possible with .*tokenizer.json"):
        GuidanceBackend(tmp_path, VOCAB_SIZE, EOS)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(UnsupportedError, match=r"which cannot be read: 'utf-8' codec"):
        GuidanceBackend(tmp_path, VOCAB_SIZE, EOS)
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    assert start(GuidanceBackend(tmp_path, VOCAB_SIZE, EOS), regex="a").accept(67)


def test_a_model_without_end_of_sequence_is_refused(demo_model: Path) -> None:
    with pytest.raises(UnsupportedError, match="names an end of sequence"):
        GuidanceBackend(demo_model, VOCAB_SIZE, ())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"grammar": 'start: "<|im_start|>x"'}, "<|im_start|>x"),
        ({"json": {"const": "<|im_start|>"}}, '"<|im_start|>"'),
        ({"regex": r"a<\|im_end\|>b"}, "a<|im_end|>b"),
        ({"choice": ["<|im_end|>"]}, "<|im_end|>"),
    ],
)
def test_text_that_a_special_token_has_is_spelled_out(
    backend: GuidanceBackend, tokenizer: Tokenizer, options: dict[str, Any], text: str
) -> None:
    constraint = start(backend, **options)
    token_ids: list[int] = []
    while not constraint.is_over:
        token_id = min(allowed(constraint))
        assert constraint.accept(token_id)
        token_ids.append(token_id)
    assert tokenizer.decode(token_ids[:-1], skip_special_tokens=True) == text


def test_a_token_that_only_the_config_declares_may_be_named_too(
    demo_model: Path, tmp_path: Path
) -> None:
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    declared = json.dumps({"additional_special_tokens": ["<tool_call>"]})
    (tmp_path / "tokenizer_config.json").write_text(declared)
    constraint = start(
        GuidanceBackend(tmp_path, VOCAB_SIZE + 1, EOS), grammar='start: <tool_call> "x"'
    )
    assert allowed(constraint, vocab_size=VOCAB_SIZE + 1) == {VOCAB_SIZE}


def test_a_special_token_that_a_grammar_names_is_allowed(backend: GuidanceBackend) -> None:
    constraint = start(backend, grammar='start: <|im_start|> "x"')
    assert allowed(constraint) == {1}
    assert constraint.accept(1)
