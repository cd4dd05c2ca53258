"""Classes of processors that tests can play on this one."""

from __future__ import annotations

from typing import Final

import pytest

from pagemesh.kernels.jit.cpu_isa import CpuIsa, processor_isas

PLAYABLE_ISAS: Final = tuple(dict.fromkeys([*processor_isas(), CpuIsa.AVX512_BF16, CpuIsa.AMX]))
"""Those that it has, and those whose products of bfloat16 are emulated bit for bit where it lacks them."""

isas = pytest.mark.parametrize("isa", PLAYABLE_ISAS, ids=str)
