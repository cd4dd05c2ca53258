"""Calls of an `LLM` on fake engines, one of which does something unexpected in its third step."""

from __future__ import annotations

from collections.abc import Callable

from pagemesh.config import SchedulerConfig
from pagemesh.core.request import EngineRequest
from pagemesh.engine.engine import EngineCore
from pagemesh.engine.runner import LayerProgress
from pagemesh.llm.generation import Answer, PromptRun, run_to_end
from pagemesh.llm.inbox import Deliveries, Progress
from pagemesh.llm.prompts import EncodedPrompt
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import Batch, StepResult
from pagemesh.scheduler.scheduler import Scheduler
from pagemesh.tokenizer import Tokenizer
from tests.fakes.engine import VOCAB_SIZE, FakeKv, FakeRunner
from tests.fakes.inbox import DEADLINE
from tests.unit.scheduler.builders import make_info


def make_run(
    tokenizer: Tokenizer,
    request_id: str,
    prompt: tuple[int, ...],
    *,
    num_answers: int = 1,
    max_tokens: int = 8,
    stop: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
) -> PromptRun:
    """Answer i draws with seed i."""
    answers = []
    for index in range(num_answers):
        sampling = SamplingParams(seed=index, max_tokens=max_tokens, stop_token_ids=stop_token_ids)
        request = EngineRequest(f"{request_id}-{index}", prompt, sampling)
        answers.append(Answer(request, tokenizer, stop))
    return PromptRun(request_id, EncodedPrompt(None, prompt), answers, num_answers, False)


def run(engine: EngineCore, deliveries: Deliveries, *runs: PromptRun) -> None:
    with Progress(len(runs), shown=False) as progress:
        run_to_end(engine, deliveries, runs, progress)


def settle(engine: EngineCore) -> None:
    """Wait until every command queued so far was run."""
    engine.pin("settle", []).result(DEADLINE)
    engine.release("settle")
    engine.pin("settle", []).result(DEADLINE)
    engine.release("settle")


class ActingRunner(FakeRunner):
    """Does something in its third step."""

    def __init__(self, kv: FakeKv, act: Callable[[], object]) -> None:
        super().__init__(kv)
        self._act = act
        self._num_steps = 0

    def execute(self, batch: Batch, watch: LayerProgress | None = None) -> StepResult:
        self._num_steps += 1
        if self._num_steps == 3:
            self._act()
        return super().execute(batch, watch)


def make_acting_engine(act: Callable[[], object], step_timeout: float = DEADLINE) -> EngineCore:
    info = make_info(num_blocks=64)
    kv = FakeKv(info.layout, info.num_blocks)
    scheduler = Scheduler(info, SchedulerConfig().on("cpu"), vocab_size=VOCAB_SIZE)
    return EngineCore(info, scheduler, ActingRunner(kv, act), kv, step_timeout=step_timeout)
