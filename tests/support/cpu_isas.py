"""Classes of processors that tests can play on this one."""

from __future__ import annotations

from typing import Final

import pytest

from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas

PLAYABLE_ISAS: Final = tuple(isa for isa in CpuIsa if isa in processor_isas() or isa.has_pair_dots)
"""Those that it has, and those whose products of bfloat16 are emulated bit for bit where it lacks them."""

isas = pytest.mark.parametrize("isa", PLAYABLE_ISAS, ids=str)
