"""Some cells of the chaos matrix on a mesh with a kvstore alone; `make chaos` plays all."""

from __future__ import annotations

import pytest

from tests.chaos.matrix import Cell, cells_in_tests
from tests.chaos.site import Site
from tests.chaos.trial import GIVE_UP_S, play

pytestmark = pytest.mark.costly

SHARED_INDEX = False


@pytest.mark.product(most=2)
@pytest.mark.parametrize("cell", cells_in_tests(SHARED_INDEX), ids=lambda cell: cell.id)
def test_what_a_client_sees_is_what_the_matrix_says(site: Site, cell: Cell) -> None:
    assert play(site, cell, GIVE_UP_S).wrong == []
