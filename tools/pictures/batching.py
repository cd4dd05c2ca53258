"""What the real scheduler computes, step by step, of a few requests that come one after the other."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagemesh.config import SchedulerConfig
from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvLayout
from pagemesh.core.request import EngineRequest
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import StepResult
from pagemesh.scheduler.scheduler import Scheduler
from tools.pictures.svg import Drawing

BUDGET: Final = 16
MAX_NUM_SEQS: Final = 4
_TOKEN: Final = 7
_CELL, _LEFT, _TOP, _ROW = 42, 190, 66, 44


class Asked(NamedTuple):
    """A request of the example."""

    name: str
    step: int
    """Before which it comes."""
    num_prompt_tokens: int
    num_answer_tokens: int


ASKED: Final = (
    Asked("A", 0, 10, 9),
    Asked("B", 0, 6, 8),
    Asked("C", 2, 34, 6),
    Asked("D", 3, 8, 9),
    Asked("E", 5, 12, 5),
)


def steps() -> list[dict[str, tuple[int, bool]]]:
    """Of each step, by request: how many tokens were computed, and whether it was a decode."""
    layout = KvLayout.uniform(4, num_layers=1, num_kv_heads=1, head_dim=1, dtype="float32")
    info = EngineInfo("example", layout, 64, 256, MAX_NUM_SEQS)
    scheduler = Scheduler(info, SchedulerConfig(MAX_NUM_SEQS, BUDGET), vocab_size=1000)
    found: list[dict[str, tuple[int, bool]]] = []
    while True:
        for number, asked in enumerate(ASKED):
            if asked.step == len(found):
                _submit(scheduler, asked, number)
        batch = scheduler.schedule()
        if not batch.sequences:
            return found
        lengths = {asked.name: asked.num_prompt_tokens for asked in ASKED}
        found.append(
            {
                sequence.request_id: (
                    len(sequence.token_ids),
                    sequence.start >= lengths[sequence.request_id],
                )
                for sequence in batch.sequences
            }
        )
        num_sampled = sum(sequence.sampling is not None for sequence in batch.sequences)
        scheduler.update(batch, StepResult([_TOKEN] * num_sampled))
        scheduler.take_output(scheduler.load())


def _submit(scheduler: Scheduler, asked: Asked, number: int) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=asked.num_answer_tokens, ignore_eos=True)
    # No two prompts begin alike.
    prompt = tuple(range(100 * (number + 1), 100 * (number + 1) + asked.num_prompt_tokens))
    scheduler.requests.submit(EngineRequest(asked.name, prompt, sampling))


def draw() -> str:
    """The picture."""
    found = steps()
    width = max(_LEFT + _CELL * len(found) + 20, 880)
    height = _TOP + _ROW * (len(ASKED) + 1) + 54
    drawing = Drawing(width, height, "Requests join and leave the batch between steps")
    drawing.words(_LEFT - 12, 46, "step", anchor="end", colour="soft", size=13)
    for number in range(len(found)):
        drawing.words(
            _LEFT + _CELL * number + 19,
            46,
            str(number + 1),
            anchor="middle",
            colour="soft",
            size=13,
        )
    for row, asked in enumerate(ASKED):
        _draw_request(drawing, asked, found, _TOP + _ROW * row)
    top = _TOP + _ROW * len(ASKED)
    drawing.words(_LEFT - 12, top + 25, f"tokens of {BUDGET}", anchor="end", colour="soft", size=13)
    for number, step in enumerate(found):
        total = sum(num_tokens for num_tokens, _ in step.values())
        drawing.words(
            _LEFT + _CELL * number + 19, top + 25, str(total), anchor="middle", bold=total == BUDGET
        )
    _draw_key(drawing, top + 46)
    return drawing.text()


def _draw_request(
    drawing: Drawing, asked: Asked, found: list[dict[str, tuple[int, bool]]], top: float
) -> None:
    drawing.words(16, top + 16, asked.name, bold=True, size=15)
    drawing.words(
        36,
        top + 16,
        f"prompt {asked.num_prompt_tokens}, answer {asked.num_answer_tokens}",
        size=12.5,
    )
    has_begun = False
    for number, step in enumerate(found):
        x = _LEFT + _CELL * number
        if asked.name in step:
            num_tokens, is_decode = step[asked.name]
            has_begun = True
            drawing.box(x, top - 4, _CELL - 4, 32, "green" if is_decode else "amber")
            drawing.words(x + 19, top + 17, str(num_tokens), anchor="middle")
        elif not has_begun and number >= asked.step:
            drawing.box(x, top - 4, _CELL - 4, 32, "plain", dashed=True)
            drawing.words(x + 19, top + 17, "…", anchor="middle", colour="soft")


def _draw_key(drawing: Drawing, y: float) -> None:
    x = 16.0
    for colour, text in (
        ("amber", "tokens of its prompt"),
        ("green", "the next token of its answer"),
        ("plain", f"waits: all {MAX_NUM_SEQS} slots or all {BUDGET} tokens are taken"),
    ):
        drawing.box(x, y, 18, 18, colour, dashed=colour == "plain", radius=3)
        drawing.words(x + 25, y + 14, text, size=12.5)
        x += 60 + 6.4 * len(text)
