"""Log probabilities in vLLM's form."""

from __future__ import annotations

from pathlib import Path

from pagemesh.core.request import EngineRequest, FinishReason, RequestOutput
from pagemesh.llm.generation import Answer
from pagemesh.llm.outputs import Logprob, read_logprobs
from pagemesh.sampling.logprobs import TokenLogprobs
from pagemesh.sampling.params import SamplingParams
from pagemesh.tokenizer import Tokenizer


def test_the_token_itself_comes_first_and_once(demo_model: Path) -> None:
    tokenizer = Tokenizer(demo_model)
    likeliest = TokenLogprobs(21, -0.5, 1, (21, 27), (-0.5, -1.5))
    unlikely = TokenLogprobs(313, -9.0, 40, (0, 27), (-0.1, -2.5))
    alone = TokenLogprobs(27, -3.0, 4)
    assert [
        list(position.items())
        for position in read_logprobs([likeliest, unlikely, alone], tokenizer)
    ] == [
        [(21, Logprob(-0.5, 1, "3")), (27, Logprob(-1.5, 2, "9"))],
        [
            (313, Logprob(-9.0, 40, " +")),
            (0, Logprob(-0.1, 1, "<|endoftext|>")),
            (27, Logprob(-2.5, 2, "9")),
        ],
        [(27, Logprob(-3.0, 4, "9"))],
    ]


def test_log_probabilities_behind_a_stop_string_are_cut_off(demo_model: Path) -> None:
    """ "3 + 9" as 21, 313, 223, 27."""
    request = EngineRequest("a", (1,), SamplingParams(logprobs=0, prompt_logprobs=0))
    answer = Answer(request, Tokenizer(demo_model), (" +",))
    scores = tuple(TokenLogprobs(token_id, -token_id, 1) for token_id in (21, 313, 223, 27))
    answer.add(RequestOutput("a", (21, 313, 223, 27), logprobs=scores))
    output = answer.output(0, with_logprobs=True)
    assert (output.text, output.token_ids) == ("3", (21, 313))
    assert output.cumulative_logprob == -334
    assert output.logprobs is not None
    assert [list(position) for position in output.logprobs] == [[21], [313]]
    assert answer.prompt_logprobs() == (None,)


def test_without_asking_there_are_none(demo_model: Path) -> None:
    answer = Answer(EngineRequest("a", (1,), SamplingParams()), Tokenizer(demo_model), ())
    answer.add(RequestOutput("a", (21,), FinishReason.LENGTH))
    output = answer.output(0, with_logprobs=False)
    assert (output.logprobs, output.cumulative_logprob) == (None, None)
    assert answer.prompt_logprobs() is None
