"""--cpu-isa: the class that was asked for, or one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast, get_args

import pytest
from structlog.testing import capture_logs

from pagemesh.config import CpuIsaName
from pagemesh.errors import ConfigError
from pagemesh.kernels.jit import cpu_isa
from pagemesh.kernels.jit.cpu_isa import CpuIsa, current_isa, processor_isas, using_isa
from pagemesh.loading import identical as setting
from pagemesh.loading.identical import settle_cpu_isa


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with using_isa(current_isa()):
        yield


def play(monkeypatch: pytest.MonkeyPatch, *isas: CpuIsa) -> None:
    """A processor that has these, the best first."""
    cpu_isa.best_isa.cache_clear()
    monkeypatch.setattr(cpu_isa, "_chosen", [])
    for module in (cpu_isa, setting):
        monkeypatch.setattr(module, "processor_isas", lambda: isas)


def test_every_class_that_the_processor_has_can_be_asked_for() -> None:
    for isa in processor_isas():
        if isa != CpuIsa.GENERIC:
            settle_cpu_isa(cast(CpuIsaName, isa.value), lambda: True)
            assert current_isa() == isa


def test_what_the_processor_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, CpuIsa.AVX512, CpuIsa.AVX2, CpuIsa.GENERIC)
    with pytest.raises(
        ConfigError, match=r"^--cpu-isa is 'amx', but this processor has avx512, avx2$"
    ):
        settle_cpu_isa("amx")
    assert "neon" in get_args(CpuIsaName)
    with pytest.raises(ConfigError, match="--cpu-isa is 'neon', but"):
        settle_cpu_isa("neon")


def test_tiles_that_linux_refuses_are_refused_or_left_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(monkeypatch, CpuIsa.AMX, CpuIsa.AVX512_BF16, CpuIsa.AVX512, CpuIsa.GENERIC)
    monkeypatch.setattr(cpu_isa, "may_use_tiles", lambda: False)
    with pytest.raises(ConfigError, match="--cpu-isa is 'amx', but Linux refuses this process"):
        settle_cpu_isa("amx", lambda: False)
    with capture_logs() as lines:
        settle_cpu_isa("auto", lambda: False)
    warning, said = lines
    assert warning["log_level"] == "warning"
    assert "Linux refuses" in warning["reason"]
    assert said["cpu_isa"] == current_isa() == CpuIsa.AVX512_BF16
    cpu_isa.best_isa.cache_clear()
