from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagemesh.config import ModelConfig, SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.request import EngineRequest, FinishReason
from pagemesh.engine.cpu_runner import CpuRunner
from pagemesh.engine.runner import compute_step
from pagemesh.models.loader import LoadedModel, load_model
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, ScheduledSequence
from pagemesh.scheduler.scheduler import Scheduler
from tests.unit.models.model_folder import break_token, write_model

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [1, 5, 2, 9, 4, 4, 0, 8]


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(ModelConfig(str(write_model(tmp_path))))


def make_runner(model: LoadedModel) -> CpuRunner:
    return CpuRunner(model, block_size=4, num_blocks=16)


def make_sequence(
    request_id: str = "r",
    token_ids: list[int] = PROMPT,
    start: int = 0,
    block_ids: tuple[int, ...] = (3, 1, 2),
    sampling: SamplingParams | None = GREEDY,
    suppressed: tuple[int, ...] = (),
) -> ScheduledSequence:
    return ScheduledSequence(request_id, token_ids, start, block_ids, sampling, suppressed)


def sampled(runner: CpuRunner, *sequences: ScheduledSequence) -> list[int]:
    return list(compute_step(runner, Batch(sequences)).token_ids)


def next_token(model: LoadedModel, token_ids: list[int]) -> int:
    return sampled(make_runner(model), make_sequence(token_ids=token_ids))[0]


def test_ids_come_in_batch_order_for_the_sequences_that_ask(model: LoadedModel) -> None:
    runner = make_runner(model)
    prompts = [PROMPT[:7], PROMPT[:2], PROMPT[:5], PROMPT[:4]]
    blocks = [(0, 1), (2,), (3, 4), (5,)]
    for index in (0, 2):
        # The first and the third decode their last token, the others run whole prompts.
        context = make_sequence(
            token_ids=prompts[index][:-1], block_ids=blocks[index], sampling=None
        )
        assert sampled(runner, context) == []
    batch = [
        make_sequence("a", prompts[0][-1:], 6, blocks[0]),
        make_sequence("b", prompts[1], 0, blocks[1]),
        make_sequence("c", prompts[2][-1:], 4, blocks[2]),
        make_sequence("d", prompts[3], 0, blocks[3], sampling=None),
    ]
    expected = [next_token(model, prompt) for prompt in prompts[:3]]
    assert len(set(expected)) == 3
    assert sampled(runner, *batch) == expected


def test_an_unsampled_chunk_stores_its_kv(model: LoadedModel) -> None:
    runner = make_runner(model)
    assert sampled(runner, make_sequence(token_ids=PROMPT[:6], sampling=None)) == []
    written = runner.kv.layers[0].flatten(3).abs().sum(-1) > 0
    assert written[0].nonzero().tolist() == [[1, 0], [1, 1], [3, 0], [3, 1], [3, 2], [3, 3]]
    assert torch.equal(written[0], written[1])
    rest = make_sequence(token_ids=PROMPT[6:], start=6)
    assert sampled(runner, rest) == [next_token(model, PROMPT)]


def test_suppressed_tokens_are_not_sampled(model: LoadedModel) -> None:
    first = next_token(model, PROMPT)
    sequences = [
        make_sequence("a", suppressed=(first,)),
        make_sequence("b", block_ids=(4, 5)),
    ]
    second, unchanged = sampled(make_runner(model), *sequences)
    assert second != first
    assert unchanged == first


def test_the_draw_is_for_the_position_of_the_new_token(model: LoadedModel) -> None:
    params = SamplingParams(temperature=5.0, seed=3)
    runner = make_runner(model)
    whole = sampled(runner, make_sequence(sampling=params))
    sampled(runner, make_sequence(token_ids=PROMPT[:7], block_ids=(5, 6), sampling=None))
    decode = make_sequence(token_ids=PROMPT[7:], start=7, block_ids=(5, 6), sampling=params)
    assert sampled(runner, decode) == whole
    others = {
        sampled(runner, make_sequence(sampling=SamplingParams(temperature=5.0, seed=s)))[0]
        for s in range(20)
    }
    assert len(others) > 3


def test_broken_logits_name_their_request_and_harm_nobody_after(model: LoadedModel) -> None:
    break_token(model, 7)
    runner = make_runner(model)
    poisoned = make_sequence("broken", [1, 1, 1, 7], 0, (8, 9))
    sound = make_sequence("sound", PROMPT[:7], 0, (0, 1))
    result = compute_step(runner, Batch([poisoned, sound]))
    assert result.token_ids[1] == next_token(model, PROMPT[:7])
    assert {name: error.reason for name, error in result.errors.items()} == {
        "broken": "LOGITS_NOT_FINITE"
    }
    # Its blocks go to others; the slot behind the last token of "fresh" still holds the NaN.
    fresh = make_sequence("fresh", PROMPT[:6], 0, (9, 8), sampling=None)
    sampled(runner, fresh)
    decodes = [
        make_sequence("fresh", PROMPT[6:7], 6, (9, 8)),
        make_sequence("sound", PROMPT[7:], 7, (0, 1)),
    ]
    expected = [next_token(model, PROMPT[:7]), next_token(model, PROMPT)]
    assert sampled(runner, *decodes) == expected
    assert runner.kv.layers[0][:, 8, 3].isnan().all()


def test_a_chunk_whose_kv_is_broken_is_known_before_its_prompt_is_at_its_end(
    model: LoadedModel,
) -> None:
    break_token(model, 7)
    sequences = [
        make_sequence("broken", [1, 7, 1], 0, (8, 9), sampling=None),
        make_sequence("broken alone", [7], 0, (10,), sampling=None),
        make_sequence("sound", PROMPT[:7], 0, (0, 1), sampling=None),
        make_sequence("sampled", PROMPT[:7], 0, (2, 3)),
        make_sequence("decode", [7], 0, (11,)),
    ]
    result = compute_step(make_runner(model), Batch(sequences))
    assert {name: error.reason for name, error in result.errors.items()} == {
        "broken": "KV_NOT_FINITE",
        "broken alone": "KV_NOT_FINITE",
        "decode": "LOGITS_NOT_FINITE",
    }


def test_no_block_of_a_broken_chunk_gets_into_the_cache_or_to_another_worker(
    model: LoadedModel,
) -> None:
    break_token(model, 7)
    info = EngineInfo("test", model.block_layout(4), 16, 64, 8)
    scheduler = Scheduler(info, SchedulerConfig(8, 8), vocab_size=model.vocab_size)
    prompt = (1, 5, 2, 9, 7, 4, 0, 8, 3, 3, 3, 3)
    scheduler.requests.submit(EngineRequest("r", prompt, GREEDY, hold_blocks=True))
    batch = scheduler.schedule()
    assert [len(sequence.token_ids) for sequence in batch.sequences] == [8]
    scheduler.update(batch, compute_step(make_runner(model), batch))
    output = scheduler.take_output(scheduler.load())
    assert output is not None
    assert [end.finish_reason for end in output.outputs] == [FinishReason.ERROR]
    assert (output.stored_block_hashes, output.progress) == ((), ())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_models_run_whole_and_in_chunks(tmp_path: Path, dtype: str) -> None:
    model = load_model(ModelConfig(str(write_model(tmp_path)), dtype=dtype))  # type: ignore[arg-type]
    runner = make_runner(model)
    assert runner.kv.layout.dtype == dtype
    whole = sampled(runner, make_sequence())
    sampled(runner, make_sequence(token_ids=PROMPT[:5], block_ids=(7, 8), sampling=None))
    assert sampled(runner, make_sequence(token_ids=PROMPT[5:], start=5, block_ids=(7, 8)))
    assert whole == [next_token(load_model(ModelConfig(str(tmp_path))), PROMPT)]


def test_weights_are_not_changed_by_a_step(model: LoadedModel) -> None:
    runner = make_runner(model)
    first = sampled(runner, make_sequence())
    assert [sampled(runner, make_sequence()) for _ in range(3)] == [first] * 3


def test_a_dummy_run_leaves_nothing_behind(model: LoadedModel) -> None:
    runner, fresh = make_runner(model), make_runner(model)
    num_threads = torch.get_num_threads()
    runner.dummy_run(Batch([make_sequence(token_ids=[7] * 12)]))
    assert not runner.kv.bytes.any()
    assert torch.get_num_threads() == num_threads
    assert sampled(runner, make_sequence()) == sampled(fresh, make_sequence())
    assert (runner.kv.bytes == fresh.kv.bytes).all()


def test_a_dummy_run_that_fails_leaves_nothing_behind(model: LoadedModel) -> None:
    runner = make_runner(model)
    num_threads = torch.get_num_threads()
    with pytest.raises(IndexError):
        runner.dummy_run(Batch([make_sequence(token_ids=[99_999] * 12)]))
    assert not runner.kv.bytes.any()
    assert torch.get_num_threads() == num_threads
