"""The variables by which a supervisor tells a worker where its cores and its weights are shared."""

from __future__ import annotations

import os

import pytest

from pagemesh.config.environment import core_place_of_environment, shared_weights_of_environment
from pagemesh.errors import ConfigError


def test_without_them_nothing_is_shared() -> None:
    assert core_place_of_environment({}) is None
    assert shared_weights_of_environment({}) is None


def test_they_name_an_open_descriptor_and_a_place() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        place = core_place_of_environment({"PAGEMESH_SHARED_CORES": f"{descriptor}:2"})
        weights = shared_weights_of_environment({"PAGEMESH_SHARED_WEIGHTS": str(descriptor)})
    finally:
        os.close(descriptor)
    assert place == (descriptor, 2)
    assert weights == descriptor


@pytest.mark.parametrize("text", ["", "7", "1:2:3", "a:b", "99999:0"])
def test_what_no_supervisor_says_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PAGEMESH_SHARED_CORES is"):
        core_place_of_environment({"PAGEMESH_SHARED_CORES": text})


@pytest.mark.parametrize("text", ["", "0:2", "a", "99999"])
def test_memory_that_no_supervisor_made_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PAGEMESH_SHARED_WEIGHTS is"):
        shared_weights_of_environment({"PAGEMESH_SHARED_WEIGHTS": text})
