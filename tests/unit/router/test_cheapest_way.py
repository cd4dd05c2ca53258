"""Whatever is known of a mesh, the way that is chosen is one of the cheapest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.core.load import PrefillRate
from pagemesh.router.routing.candidate import Candidate, Role
from pagemesh.router.routing.cost import Link
from pagemesh.router.routing.peers import Peers
from pagemesh.router.routing.preference import cheapest, cost_of
from pagemesh.router.routing.prefill_plan import plan_prefill
from pagemesh.router.routing.ways import Path, Ways
from tests.unit.router.routing_builders import make_candidate, make_route_request

RATES = st.one_of(
    st.just(PrefillRate()),
    st.builds(
        PrefillRate,
        st.floats(1e-6, 1e-2),
        st.floats(0, 1e-6),
        st.floats(0, 0.1),
        st.just(512),
        st.floats(0, 4096),
    ),
)
LINKS = st.dictionaries(
    st.sampled_from(["d", "e", "p", "q"]),
    st.builds(Link, st.floats(0, 1e10), st.floats(0, 0.1)),
)


@st.composite
def meshes(draw: st.DrawFn) -> list[Candidate]:
    roles = {"d": Role.DECODE, "e": Role.DECODE, "p": Role.PREFILL, "q": Role.PREFILL}
    return [
        make_candidate(
            worker_id,
            role=role,
            prefill_rate=draw(RATES),
            links=draw(LINKS),
            num_held_blocks=draw(st.integers(0, 120)),
            num_pending_tokens=draw(st.integers(0, 20_000)),
            queue_seconds=draw(st.floats(0, 10)),
            num_running=draw(st.integers(0, 64)),
        )
        for worker_id, role in roles.items()
    ]


@given(meshes(), st.integers(1, 2000))
def test_no_way_is_chosen_that_costs_more_than_noise_more_than_the_cheapest(
    mesh: list[Candidate], num_tokens: int
) -> None:
    decode, *_ = mesh
    request = make_route_request(num_prompt_tokens=num_tokens)
    ways = Ways(decode, Peers(decode.facts.kv_kind, mesh, request)).predicted
    if not ways:
        assert not any(worker.facts.prefill_rate.is_known for worker in mesh)
        return
    best = cheapest(ways, decode)
    least = min(cost_of(way, decode) for way in ways)
    assert cost_of(best, decode) <= max(1.05 * least, least + 0.001)
    # Nothing that loads decode workers less is as cheap.
    order = list(Path)
    spared = [w for w in ways if order.index(w.path) < order.index(best.path)]
    assert all(cost_of(way, decode) > 1.05 * least for way in spared)
    plan = plan_prefill(Ways(decode, Peers(decode.facts.kv_kind, mesh, request)), None)
    assert plan.path is best.path
    assert plan.predicted_seconds == best.forecast.seconds
