"""--cpu-isa: which class of processors computes, said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from pagemesh.config import CpuIsaName
from pagemesh.errors import ConfigError
from pagemesh.kernels.jit.cpu_isa import (
    CpuIsa,
    current_isa,
    may_use_tiles,
    processor_isas,
    settle_isa,
)

log: Final[Any] = structlog.get_logger()

REFUSED: Final = "Linux refuses this process AMX's tile registers (arch_prctl ARCH_REQ_XCOMP_PERM), as some sandboxes do"


def settle_cpu_isa(asked: CpuIsaName, may_use_tiles: Callable[[], bool] = may_use_tiles) -> None:
    """Compile kernels for the class that is asked for, before any is; ConfigError if it cannot be.

    What auto takes is less than the processor has only where Linux refuses it, which is warned of.
    """
    has = processor_isas()
    if asked == "auto":
        if has[0] == CpuIsa.AMX and not may_use_tiles():
            log.warning("a lesser class of processor computes", reason=REFUSED, cpu_isa=has[1])
    else:
        isa = CpuIsa(asked)
        if isa not in has:
            names = ", ".join(each for each in has if each != CpuIsa.GENERIC) or "none of them"
            raise ConfigError(f"--cpu-isa is {asked!r}, but this processor has {names}")
        if isa == CpuIsa.AMX and not may_use_tiles():
            raise ConfigError(f"--cpu-isa is {asked!r}, but {REFUSED}")
        settle_isa(isa)
    log.info("kernels for this processor", cpu_isa=current_isa())
