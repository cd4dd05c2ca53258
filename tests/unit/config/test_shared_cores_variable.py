"""The variable by which a supervisor tells a worker where its cores are shared."""

from __future__ import annotations

import os

import pytest

from pagemesh.config.environment import core_place_of_environment
from pagemesh.errors import ConfigError


def test_without_it_no_cores_are_shared() -> None:
    assert core_place_of_environment({}) is None


def test_it_names_an_open_descriptor_and_a_place() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        place = core_place_of_environment({"PAGEMESH_SHARED_CORES": f"{descriptor}:2"})
    finally:
        os.close(descriptor)
    assert place == (descriptor, 2)


@pytest.mark.parametrize("text", ["", "7", "1:2:3", "a:b", "99999:0"])
def test_what_no_supervisor_says_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PAGEMESH_SHARED_CORES is"):
        core_place_of_environment({"PAGEMESH_SHARED_CORES": text})
