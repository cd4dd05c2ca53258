from __future__ import annotations

import pytest

from pagemesh.loading import parts
from pagemesh.loading.parts import StartClock


def test_phases_add_up_and_what_lies_between_counts_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([1.0, 3.0, 10.0, 10.5, 20.0, 24.0])
    monkeypatch.setattr(parts, "perf_counter", lambda: next(times))
    clock = StartClock()
    with clock.phase("compile"):
        pass
    with clock.phase("measure"):
        pass
    with pytest.raises(ValueError), clock.phase("compile"):
        raise ValueError
    assert clock.seconds == {"compile": 6.0, "measure": 0.5}
