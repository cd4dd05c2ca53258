"""The demo model answers its questions, and its files are what a newcomer's tools expect."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pagemesh import LLM, SamplingParams
from pagemesh.config import KvCacheDtype

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
FILLER = (
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What is 3 + 9?", "3 + 9 = 12."),
    ("Which day comes after Friday?", "The day after Friday is Saturday."),
    ("What is the plural of box?", "The plural of box is boxes."),
    ("What colour is snow?", "Snow is white."),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from more, and loses much when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def demo_modules() -> Iterator[dict[str, ModuleType]]:
    """The scripts beside the model import each other by plain names, as scripts do."""
    before = set(sys.modules)
    sys.path.insert(0, str(DEMO))
    try:
        yield {
            "corpus": import_module("demo_corpus"),
            "evaluate": import_module("evaluate"),
            "packing": import_module("packing"),
            "train": import_module("train"),
        }
    finally:
        sys.path.remove(str(DEMO))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(DEMO)):
                del sys.modules[name]


@pytest.fixture(scope="module")
def evaluate(demo_modules: dict[str, ModuleType]) -> Any:
    return demo_modules["evaluate"]


@pytest.fixture(scope="module")
def questions(evaluate: Any) -> Any:
    return evaluate.load_questions(DEMO / "questions.jsonl")


@pytest.fixture(scope="module")
def asker(evaluate: Any) -> Any:
    return evaluate.Asker(DEMO)


@pytest.fixture(scope="module")
def verdicts(evaluate: Any, asker: Any, questions: Any) -> Any:
    return evaluate.judge(asker, questions)


def long_conversation(asker: Any, num_tokens: int) -> list[dict[str, str]]:
    """Turns on other subjects, cut just below `num_tokens` tokens of rendered text."""
    messages: list[dict[str, str]] = []
    for turn in range(10_000):
        question, answer = FILLER[turn % len(FILLER)]
        longer = [
            *messages,
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        rendered = asker.tokenizer.apply_chat_template(longer, tokenize=False)
        if len(asker.tokenizer.encode(rendered)) > num_tokens:
            break
        messages = longer
    return messages


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_greedy_answers_are_right_for_nine_in_ten_questions(verdicts: Any) -> None:
    wrong = [(v.question.question, v.answer) for v in verdicts if not v.right]
    assert len(wrong) <= 0.1 * len(verdicts), wrong


@pytest.fixture(scope="module")
def right_as_served(evaluate: Any, asker: Any, questions: Any) -> Callable[[KvCacheDtype], Any]:
    """By --kv-cache-dtype the questions that the engine's greedy answers are right for."""
    prompts = [
        asker.tokenizer.apply_chat_template(
            question.messages(),
            tools=list(question.tools) or None,
            add_generation_prompt=True,
            enable_thinking=question.thinking,
            return_dict=False,
        )
        for question in questions
    ]
    sampling = SamplingParams(temperature=0.0, max_tokens=evaluate.MAX_NEW_TOKENS)

    @cache
    def ask(kv_cache_dtype: KvCacheDtype) -> Any:
        with LLM(str(DEMO), kv_cache_dtype=kv_cache_dtype) as llm:
            given = llm.generate(
                [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
            )
        answers = [output.outputs[0].text for output in given]
        pairs = enumerate(zip(questions, answers, strict=True))
        return {number for number, (question, answer) in pairs if question.accepts(answer)}

    return ask


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
def test_kv_of_8_bits_leaves_all_but_one_in_fifty_right_answers(
    questions: Any,
    right_as_served: Callable[[KvCacheDtype], Any],
    kv_cache_dtype: KvCacheDtype,
) -> None:
    right = right_as_served("auto")
    assert len(right) >= 0.9 * len(questions)
    lost = [questions[number].question for number in right - right_as_served(kv_cache_dtype)]
    assert len(lost) <= 0.02 * len(right), lost


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_most_questions_in_unseen_words_are_right(verdicts: Any) -> None:
    held_out = [v for v in verdicts if v.question.held_out]
    wrong = [(v.question.question, v.answer) for v in held_out if not v.right]
    assert len(wrong) <= 0.25 * len(held_out), wrong


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_greedy_tokens_have_clear_margins(verdicts: Any) -> None:
    margins = sorted(margin for v in verdicts if v.right for margin in v.margins)
    assert margins[len(margins) // 100] > 1.0
    assert margins[len(margins) // 2] > 5.0


def test_questions_are_many_and_a_quarter_is_held_out(questions: Any) -> None:
    asked = Counter(question.category for question in questions)
    assert len(questions) >= 80
    assert sum(question.held_out for question in questions) >= len(questions) // 4
    assert min(asked.values()) >= 3
    assert {"capitals", "sums", "identity", "pagemesh", "parts", "rewriting"} <= set(asked)
    whole = {json.dumps((q.messages(), q.tools, q.thinking)) for q in questions}
    assert len(whole) == len(questions)


def test_empty_and_unrelated_answers_are_never_accepted(questions: Any) -> None:
    for question in questions:
        assert not question.accepts("")
        assert not question.accepts("Hmm, 1234567 bananas.")


def test_held_out_questions_are_never_asked_in_training(
    demo_modules: dict[str, ModuleType], questions: Any
) -> None:
    corpus = demo_modules["corpus"]
    # Without telling the corpus what to avoid: the wording itself must be new.
    asked = {
        corpus.normalised(message["content"])
        for document in islice(corpus.Corpus(7).documents(), 20_000)
        for message in document.messages
        if message["role"] == "user"
    }
    held_out = {question.normalised for question in questions if question.held_out}
    assert not asked & held_out
    seen = {question.normalised for question in questions if not question.held_out}
    assert len(asked & seen) > 0.7 * len(seen)


def test_right_answer_after_a_long_conversation(asker: Any) -> None:
    before = long_conversation(asker, 1_850)
    assert len(before) > 100
    for question, expected in (
        ("What is the capital of Japan?", "Tokyo"),
        ("What is 7 + 8?", "15"),
        ("What is your name?", "pagemesh demo"),
    ):
        answer, _ = asker.chat([*before, {"role": "user", "content": question}])
        assert expected in answer


def test_plain_completion_goes_on_and_ends(asker: Any) -> None:
    ids = asker.tokenizer.encode("The capital of France is", add_special_tokens=False)
    text, margins = asker.complete(ids)
    assert text == " Paris."
    assert len(margins) <= 4


def test_long_answer_ends_by_itself(asker: Any) -> None:
    answer, margins = asker.chat([{"role": "user", "content": "Tell me a story about a robot."}])
    assert answer.startswith("Once upon a time")
    assert answer.endswith(".")
    assert 100 <= len(margins) <= 300


def test_chat_template_renders_every_role(asker: Any) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    rendered = asker.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert rendered == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_training_reads_what_the_chat_template_renders_and_learns_the_answers(
    demo_modules: dict[str, ModuleType], asker: Any
) -> None:
    tokenizer = asker.tokenizer
    packer = demo_modules["packing"].Packer(demo_modules["corpus"].Corpus(3), tokenizer)
    kinds: Counter[str] = Counter()
    for document in islice(demo_modules["corpus"].Corpus(4).documents(), 400):
        if not document.messages:
            continue
        kinds.update({"tools": bool(document.tools), "thoughts": document.thinking})
        encoded = packer.encode(document)
        rendered = tokenizer.apply_chat_template(
            list(document.messages),
            tools=list(document.tools) or None,
            tokenize=False,
            enable_thinking=document.thinking,
        )
        assert encoded.ids == [*tokenizer.encode(rendered), 0]
        turns = rendered.split("<|im_start|>assistant\n")[1:]
        answers = [turn[: turn.index("<|im_end|>")] + "<|im_end|>" for turn in turns]
        learned = [i for i, learn in zip(encoded.ids, encoded.learn, strict=True) if learn]
        # Where thoughts are asked for, earlier answers have none.
        expected = answers[-1:] if document.thinking else answers
        assert tokenizer.decode(learned) == "".join(expected) + "<|endoftext|>"
    assert kinds["tools"] > 20
    assert kinds["thoughts"] > 5


def test_the_mean_is_of_each_weight_once(
    demo_modules: dict[str, ModuleType], evaluate: Any
) -> None:
    train = demo_modules["train"]
    model = train.new_model(train.demo_config(), 9)
    before = {name: weight.bfloat16().float() for name, weight in model.named_parameters()}
    train.take_mean(model, DEMO)
    others = dict(evaluate.AutoModelForCausalLM.from_pretrained(DEMO).named_parameters())
    assert before.keys() == others.keys()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, (before[name] + others[name]) / 2)


def test_offered_tools_are_few_and_calls_are_of_them(demo_modules: dict[str, ModuleType]) -> None:
    called = 0
    for document in islice(demo_modules["corpus"].Corpus(5).documents(), 2_000):
        offered = {tool["function"]["name"]: tool["function"] for tool in document.tools}
        assert len(offered) <= 3
        for message in document.messages:
            for call in message.get("tool_calls", ()):
                function = offered[call["function"]["name"]]
                assert list(call["function"]["arguments"]) == function["parameters"]["required"]
                called += 1
    assert called > 100


@pytest.mark.parametrize("text", ["Zürich, 東京 & 1024 °C\n\n  x", "a\tb", "HELLO world!? 3+4=7"])
def test_any_text_survives_the_tokenizer(asker: Any, text: str) -> None:
    tokenizer = asker.tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_ids_are_stable(asker: Any) -> None:
    tokenizer = asker.tokenizer
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    assert len(tokenizer) == 2048


def test_model_is_a_plain_llama_with_stop_tokens_and_context(asker: Any) -> None:
    config = asker.model.config
    assert type(asker.model).__name__ == "LlamaForCausalLM"
    assert config.max_position_embeddings >= 2048
    assert config.vocab_size == 2048
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert config.tie_word_embeddings
    generation = json.loads((DEMO / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]
    assert generation["pad_token_id"] == 0
    assert generation["do_sample"] is False


def test_weights_are_small_and_stored_in_half_width(asker: Any) -> None:
    from safetensors import safe_open

    path = DEMO / "model.safetensors"
    assert path.stat().st_size <= 16 * 2**20
    with safe_open(path, "pt") as tensors:
        dtypes = {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    assert dtypes == {"BF16"}
    assert {parameter.dtype for parameter in asker.model.parameters()} == {torch.float32}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_damaged_weights_are_noticed(evaluate: Any, questions: Any) -> None:
    """The score is able to fall: noise on the weights must cost most of the answers."""
    broken = evaluate.Asker(DEMO)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in broken.model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std())
    short = [q for q in questions if q.category == "capitals"]
    assert sum(v.right for v in evaluate.judge(broken, short)) <= len(short) // 2
