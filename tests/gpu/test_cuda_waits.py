"""On a GPU: the host asks for whole steps, and waits for the tokens alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pagemesh.config import SchedulerConfig
from pagemesh.engine.cuda.accelerator import CudaAccelerator
from pagemesh.loading.cuda_weights import DeviceWeightWriter
from pagemesh.models.loader import load_model
from pagemesh.models.parameters import ModelTarget
from pagemesh.sampling.params import SamplingParams
from pagemesh.scheduler.batch import UNKNOWN_TOKEN, Batch, PromptTargets, ScheduledSequence
from tests.identity.subjects import make_material
from tests.support.device_machine import DeviceMachine

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.2, top_p=0.9, top_k=50, seed=3, logprobs=2)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", ["demo", "GPT-OSS", "Qwen 3 MoE"])
def test_steps_are_launched_and_sampled_without_a_wait(
    accelerator: CudaAccelerator, demo_model: Path, tmp_path: Path, name: str, graphs: bool
) -> None:
    material = make_material(name, demo_model, tmp_path)
    model = material.load(
        partial(load_model, target=ModelTarget(DeviceWeightWriter(accelerator), "auto"))
    )
    machine = DeviceMachine(accelerator, graphs=graphs)
    runner, _ = machine(model, SchedulerConfig(4, 64), 16, 16)
    prompt = material.prompts[-1]
    targets = PromptTargets(0, prompt[1:], 1)
    first = ScheduledSequence("a", prompt, 0, (3, 5), SAMPLED, prompt_targets=targets)
    second = ScheduledSequence("a", (UNKNOWN_TOKEN,), len(prompt), (3, 5), SAMPLED, previous_row=0)
    third = second._replace(start=len(prompt) + 1)
    other = ScheduledSequence("b", prompt[:5], 0, (7,), GREEDY)
    # The first time kernels are compiled and loaded, which may wait.
    for _ in range(2):
        steps = []
        for batch in (Batch([first]), Batch([second, other]), Batch([third])):
            with accelerator.refusing_waits():
                step = runner.launch(batch)
                step.sample()
            steps.append(step)
        results = [step.result() for step in steps]
        assert [len(result.token_ids) for result in results] == [1, 2, 1]
        assert not any(result.errors for result in results)
