"""A deployment of the demo model by its measured rates, checked in the simulator on its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagemesh.cli.main import main
from pagemesh.plan.limits import RESOURCES
from pagemesh.plan.search import Size
from pagemesh.plan.trial import misses_of
from pagemesh.sim.model import MeshModel, read_model
from pagemesh.sim.records import Outcome, Record
from pagemesh.sim.run import simulate
from pagemesh.sim.settings import SimConfig, WorkloadConfig
from pagemesh.sim.sources import at_rate, load_workload
from pagemesh.sim.summary import summarize
from pagemesh.workload.slo import Slo, parse_slo

ROOT = Path(__file__).resolve().parents[3]
RATES = str(ROOT / "docs/examples/demo_rates.yaml")
WORKLOAD = WorkloadConfig(
    num_prompts=300, prefixes=20, prefix_tokens=300, prompt_tokens=60, output_tokens=24
)
TRAFFIC: tuple[str, ...] = ("--num-prompts", "300", "--prefixes", "20", "--prefix-tokens", "300")
TRAFFIC += ("--prompt-tokens", "60", "--output-tokens", "24")
GOAL = ("ttft:200", "tpot:40")
FLAGS = ("--memory", "1", "--rates", RATES, *TRAFFIC, "--goodput", *GOAL)


def plan(demo_model: Path, *flags: str) -> int:
    return main(["plan", str(demo_model), *FLAGS, *flags])


def planned(demo_model: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert plan(demo_model, "--json", *flags) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)["deployment"]
    return answer


def good_share(size: Size, kv_tokens: int, rate: float, num_routers: int) -> float:
    """In `pagemesh sim`'s own hands."""
    model = read_model(RATES)
    worker = replace(
        model.decode,
        kv_tokens=kv_tokens,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        max_model_len=2048,
    )
    model = replace(model, decode=worker, block_size=16, num_layers=6, kv_bytes_per_token=6144)
    config = SimConfig(
        decode=size.decode, prefill=size.prefill, routers=num_routers, workload=WORKLOAD
    )
    trace = at_rate(load_workload(WORKLOAD), rate, size.decode)
    run = simulate(config, model, trace, "kv_aware")
    return summarize(run, "kv_aware", parse_slo(GOAL)).good_share


@pytest.mark.costly
def test_the_planned_workers_do_and_one_less_does_not(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = planned(demo_model, capsys, "--request-rate", "60", "--prefill-ratios", "0")
    least = Size(**answer["least"])
    assert least.decode > 1
    assert (answer["decode"], answer["prefill"]) == (least.decode + 1, 0)
    kv_tokens = answer["rates"]["model"]["decode"]["kv_tokens"]
    # 0.67 GiB of blocks of 6 KiB a token.
    assert kv_tokens == int(0.67 * 2**30) // (16 * 6144) * 16
    num_routers = answer["surroundings"]["routers"] - 1
    assert good_share(least, kv_tokens, 60, num_routers) >= 0.99
    fewer = Size(least.decode - 1, 0)
    assert good_share(fewer, kv_tokens, 60, num_routers) < 0.99


@pytest.mark.costly
def test_a_trial_ends_when_one_too_many_has_missed(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = planned(demo_model, capsys, "--request-rate", "60", "--prefill-ratios", "0")
    first = next(trial for trial in answer["trials"] if trial["size"]["decode"] == 1)
    assert first["is_cut"]
    assert not first["is_enough"]
    # Of 300 requests three may miss.
    assert first["good_share"] == pytest.approx(296 / 300)


def test_equal_seeds_give_equal_plans(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (
        planned(
            demo_model,
            capsys,
            "--request-rate",
            "8",
            "--num-prompts",
            "100",
            "--prefill-ratios",
            "0",
            "1",
        )
        for _ in range(2)
    )
    for answer in (first, second):
        assert answer.pop("seconds") > 0
    assert first == second
    assert len({each["prefill_per_decode"] for each in first["alternatives"]}) == 2


@pytest.mark.exhaustive
def test_what_binds_is_the_resource_of_which_more_helps(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--request-rate", "60", "--prefill-ratios", "0")
    binding = planned(demo_model, capsys, *flags)["binding"]
    assert binding["resource"] == "compute"
    assert binding["good_shares"]["compute"] > binding["good_shares"]["nothing"]
    # With room for eight requests, whose answers are long.
    small = ("--memory", "0.35", "--output-tokens", "100", "--num-prompts", "200")
    goal = ("--goodput", "ttft:1000", "tpot:40", "--request-rate", "20", "--prefill-ratios", "0")
    binding = planned(demo_model, capsys, *small, *goal)["binding"]
    assert binding["resource"] == "KV memory"


def test_a_lone_request_that_is_too_slow_is_named_with_its_time(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(demo_model, "--request-rate", "4", "--goodput", "ttft:200", "tpot:4") == 1
    assert (
        "only 0.0% are good, and no number of workers makes them quicker: --goodput tpot:4 is less than the"
        " 4.4 ms that 0.99 of them keep to"
    ) in capsys.readouterr().err


def test_prompts_that_no_worker_takes_are_counted(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(demo_model, "--request-rate", "4", "--prefix-tokens", "2100") == 1
    assert "300 do not fit into --max-model-len, or a worker's KV" in capsys.readouterr().err


@pytest.mark.costly
def test_too_few_workers_are_said_with_what_was_missed(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(demo_model, "--request-rate", "200", "--max-workers", "3") == 1
    error = capsys.readouterr().err
    assert "--max-workers is 3, but 3 decode workers are not enough: too many" in error
    assert "requests miss tpot" in error


def test_without_time_nothing_is_found(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(demo_model, "--request-rate", "60", "--plan-timeout", "0.001") == 1
    assert "--plan-timeout is 0.001, in which nothing could be tried" in capsys.readouterr().err


def test_a_short_run_is_warned_of(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = planned(demo_model, capsys, "--request-rate", "400", "--goodput", "e2el:20000")
    (note,) = answer["notes"]
    assert note.startswith("300 requests come within 1 s, but one takes up to ")
    assert "give --num-prompts " in note


def test_prefill_workers_are_spare_as_well(
    demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = planned(
        demo_model, capsys, "--request-rate", "40", "--prefill-ratios", "1", "--spare", "2"
    )
    least = answer["least"]
    assert least["prefill"] >= 1
    assert answer["spare"] == {"decode": 2, "prefill": 2}
    assert answer["devices"] == least["decode"] + least["prefill"] + 4


def record(**changes: Any) -> Record:
    ended = Record(10, 5, arrived_at=1.0, first_token_at=2.0, ended_at=4.0)
    ended.outcome = Outcome.COMPLETED
    for name, value in changes.items():
        setattr(ended, name, value)
    return ended


@pytest.mark.parametrize(
    ("slo", "changes", "misses"),
    [
        (Slo(ttft=1.0, tpot=0.5, e2el=3.0), {}, []),
        (Slo(ttft=0.9, tpot=0.4, e2el=2.9), {}, ["ttft", "tpot", "e2el"]),
        (Slo(), {"outcome": Outcome.TIMED_OUT}, ["timed_out"]),
    ],
)
def test_misses_are_named(slo: Slo, changes: dict[str, Any], misses: list[str]) -> None:
    assert misses_of(record(**changes), slo) == misses


@pytest.mark.parametrize("name", RESOURCES)
def test_more_of_a_resource_changes_what_it_stands_for(name: str) -> None:
    model = MeshModel()
    more = RESOURCES[name](model, 2.0)
    before, after = model.decode, more.decode
    assert {
        "KV memory": after.kv_tokens / before.kv_tokens,
        "--max-num-seqs": after.max_num_seqs / before.max_num_seqs,
        "compute": before.prefill.seconds_per_token / after.prefill.seconds_per_token,
        "memory bandwidth": before.decode.seconds_per_step / after.decode.seconds_per_step,
        "network": more.link.bytes_per_second / model.link.bytes_per_second,
    } == pytest.approx(
        {resource: 2.0 if resource == name else 1.0 for resource in RESOURCES}, rel=0.01
    )
