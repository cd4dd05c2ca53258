"""What a modelled engine computes between two moments: one step, or many of the same decodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagemesh.core.load import num_pairs
from pagemesh.sim.job import Job
from pagemesh.sim.model import WorkerModel


@dataclass(slots=True)
class Chunk:
    """Tokens of a prompt in a step."""

    job: Job
    start: int
    end: int

    @property
    def costs_like_a_decode(self) -> bool:
        """Whether it is one token, as where all others were cached."""
        return self.end - self.start == 1


@dataclass(slots=True)
class Step:
    """Decodes, and chunks of prompts. Without chunks, a run of several steps in which nothing else happens."""

    began_at: float
    began_at_core: float = 0.0
    """Likewise, as `Cores` count time."""
    decodes: list[Job] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    num_steps: int = 1
    decode_pairs: int = 0
    """Tokens that these attend to in the first step."""

    @property
    def num_decodes(self) -> int:
        """Decodes, and what costs like one."""
        return len(self.decodes) + sum(chunk.costs_like_a_decode for chunk in self.chunks)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens in longer chunks."""
        return sum(c.end - c.start for c in self.chunks if not c.costs_like_a_decode)

    @property
    def num_prompt_pairs(self) -> int:
        """Their pairs."""
        return sum(
            num_pairs(c.end - c.start, c.start) for c in self.chunks if not c.costs_like_a_decode
        )

    def seconds(self, model: WorkerModel, num_steps: int) -> float:
        """What the first so many steps take."""
        if not self.chunks:
            return model.decode_run_seconds(num_steps, len(self.decodes), self.decode_pairs)
        return model.step_seconds(
            self.num_prompt_tokens, self.num_prompt_pairs, self.num_decodes, self.decode_pairs
        )

    def steps_until(self, model: WorkerModel, seconds: float) -> int:
        """Number of the step that is being computed so many seconds after the beginning."""
        least, most = 1, self.num_steps
        while least < most:
            middle = (least + most) // 2
            if self.seconds(model, middle) < seconds:
                least = middle + 1
            else:
                most = middle
        return least
