"""The meshes whose cells `make test` plays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.kv.namespaces import why_not
from tests.chaos.site import Site, running_site
from tests.support.needs import lack


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Of a module, which says whether it has a SHARED_INDEX."""
    if reason := why_not():
        lack("network namespaces", reason)
    shared_index = request.module.SHARED_INDEX
    with running_site(tmp_path_factory.mktemp("site"), shared_index=shared_index) as running:
        yield running
