"""Prompts have the lengths that were asked for, share what they should, and differ otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from pagemesh.bench.datasets import Dataset, Sample
from pagemesh.bench.prompt_writer import PromptWriter
from pagemesh.bench.settings import DatasetConfig
from pagemesh.errors import ConfigError
from pagemesh.tokenizer.tokenizer import Tokenizer

DEMO = Path(__file__).resolve().parents[3] / "models/demo"


@pytest.fixture(scope="module")
def writer() -> PromptWriter:
    return PromptWriter(Tokenizer(DEMO))


def ids_of(text: str) -> list[int]:
    """By the library itself."""
    ids: list[int] = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(text).ids
    return ids


def lengths(samples: list[Sample]) -> list[int]:
    return [len(ids_of(sample.prompt)) for sample in samples]


def test_random_prompts_have_exactly_the_tokens_that_were_asked_for(writer: PromptWriter) -> None:
    config = DatasetConfig(random_input_len=37, random_output_len=5)
    samples = Dataset(config, writer).take(20)
    assert lengths(samples) == [37] * 20
    assert {(s.num_prompt_tokens, s.num_output_tokens) for s in samples} == {(37, 5)}
    assert len({sample.prompt for sample in samples}) == 20


def test_equal_seeds_give_equal_prompts_and_each_take_gives_others(writer: PromptWriter) -> None:
    config = DatasetConfig(random_input_len=9, seed=3)
    dataset = Dataset(config, writer)
    first, second = dataset.take(5), dataset.take(5)
    assert Dataset(config, writer).take(5) == first
    assert not {s.prompt for s in first} & {s.prompt for s in second}
    assert Dataset(DatasetConfig(random_input_len=9, seed=4), writer).take(5) != first


def test_the_range_ratio_spreads_both_lengths_evenly(writer: PromptWriter) -> None:
    config = DatasetConfig(random_input_len=20, random_output_len=10, random_range_ratio=0.5)
    samples = Dataset(config, writer).take(200)
    assert set(lengths(samples)) == set(range(10, 31))
    assert {sample.num_output_tokens for sample in samples} == set(range(5, 16))


def test_a_random_prefix_is_shared_by_all_rates_and_comes_on_top(writer: PromptWriter) -> None:
    config = DatasetConfig(random_input_len=10, random_prefix_len=16)
    dataset = Dataset(config, writer)
    samples = dataset.take(4) + dataset.take(4)
    assert lengths(samples) == [26] * 8
    heads = {tuple(ids_of(sample.prompt)[:16]) for sample in samples}
    tails = {tuple(ids_of(sample.prompt)[16:]) for sample in samples}
    assert (len(heads), len(tails)) == (1, 8)


def test_prefix_repetition_gives_each_beginning_the_same_number(writer: PromptWriter) -> None:
    config = DatasetConfig(
        dataset_name="prefix_repetition",
        num_prompts=11,
        prefix_repetition_prefix_len=12,
        prefix_repetition_suffix_len=6,
        prefix_repetition_num_prefixes=3,
        prefix_repetition_output_len=4,
    )
    samples = Dataset(config, writer).take(11)
    assert lengths(samples) == [18] * 9
    heads = [tuple(ids_of(sample.prompt)[:12]) for sample in samples]
    assert sorted(map(heads.count, set(heads))) == [3, 3, 3]
    assert heads != sorted(heads), "they come mixed"


def chats(*pairs: tuple[str, str]) -> str:
    return json.dumps(
        [
            {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}
            for q, a in pairs
        ]
    )


def test_sharegpt_takes_first_messages_and_their_answers_lengths(
    writer: PromptWriter, tmp_path: Path
) -> None:
    long, short = "put " * 3000, "put"
    good = [
        ("the capital of the country is", "put put put put put put"),
        ("put put put put put", "put " * 9),
    ]
    path = tmp_path / "chats.json"
    path.write_text(chats(*good, (long, good[0][1]), (short, short)))
    config = DatasetConfig(dataset_name="sharegpt", dataset_path=str(path), num_prompts=2)
    dataset = Dataset(config, writer)
    expected = {Sample(q, len(ids_of(q)), len(ids_of(a))) for q, a in good}
    assert set(dataset.take(2)) == expected
    assert dataset.num_conversations == 2
    assert set(dataset.take(2)) == expected, "they come again"
    fixed = Dataset(
        DatasetConfig(dataset_name="sharegpt", dataset_path=str(path), sharegpt_output_len=3),
        writer,
    )
    assert {sample.num_output_tokens for sample in fixed.take(2)} == {3}


def test_a_file_without_usual_conversations_is_refused(
    writer: PromptWriter, tmp_path: Path
) -> None:
    path = tmp_path / "chats.json"
    path.write_text(chats(("put", "put")))
    with pytest.raises(ConfigError, match=r"--dataset-path is '.*chats.json', which has no conv"):
        Dataset(DatasetConfig(dataset_name="sharegpt", dataset_path=str(path)), writer)
    path.write_text('[{"conversations": [{"from": "cat", "value": "meow"}]}]')
    with pytest.raises(ConfigError, match="conversation 0: message 0: from is 'cat'"):
        Dataset(DatasetConfig(dataset_name="sharegpt", dataset_path=str(path)), writer)


def test_a_vocabulary_of_single_characters_gets_prompts_of_its_lengths_too(tmp_path: Path) -> None:
    letters = {
        letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz0123456789 ")
    }
    plain = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    plain.save(str(tmp_path / "tokenizer.json"))
    samples = Dataset(DatasetConfig(random_input_len=31), PromptWriter(Tokenizer(tmp_path))).take(5)
    assert {sample.num_prompt_tokens for sample in samples} <= {30, 31, 32}
