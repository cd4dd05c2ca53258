"""Checks of models, membership and parity."""

from __future__ import annotations

import pytest

from pagemesh.cli.doctor.checks import membership, models, parity
from pagemesh.cli.doctor.facts import Examined, Fault
from pagemesh.v1 import process_pb2, types_pb2
from tests.unit.cli.doctor.mesh_facts import (
    ADVICE,
    KVSTORE,
    WORKERS,
    brief,
    canary,
    facts,
    info,
    kvstore,
    only,
    router,
    silent,
    worker,
)


def refusing(reason: str, message: str, *members: str) -> Examined:
    odd = info("decode-7", address="127.0.0.1:9999")
    refused = process_pb2.RefusedWorker(worker=odd, reason=reason, message=message)
    return kvstore(*map(info, members), refused=[refused])


@pytest.mark.parametrize(
    ("reason", "advice"),
    [("MODEL_MISMATCH", "same model folder"), ("LAYOUT_MISMATCH", "--block-size")],
)
def test_a_worker_that_does_not_fit_is_named_in_the_kvstores_words(
    reason: str, advice: str
) -> None:
    found = models.check(facts(refusing(reason, "it serves another one", "decode-0")))
    assert brief(found) == [("wrong", "decode-7")]
    assert "it serves another one" in only(found).what
    assert advice in only(found).advice


def test_of_two_fingerprints_the_rarer_one_is_odd() -> None:
    odd = info("decode-2", model_fingerprint="two")
    found = models.check(facts(router(*WORKERS, odd), kvstore(*WORKERS, odd)))
    assert ("wrong", "decode-2") in brief(found)
    assert {subject for _, subject in brief(found)} == {"decode-2"}


def test_of_two_layouts_the_rarer_one_is_odd() -> None:
    odd = info("decode-2")
    odd.kv_layout.block_size = 32
    found = models.check(facts(kvstore(*WORKERS, odd)))
    assert brief(found) == [("wrong", "decode-2")]


def test_a_model_that_nobody_generates_is_wrong() -> None:
    found = models.check(facts(router(), kvstore(info("prefill-0"))))
    assert brief(found) == [("wrong", "demo")]
    assert "refused with 503" in only(found).what


def test_a_model_that_no_router_serves_cannot_be_asked_for() -> None:
    other = info("decode-1", model_name="other", model_fingerprint="two")
    found = models.check(facts(router(info()), kvstore(info(), other)))
    assert brief(found) == [("warning", "other")]


def test_a_prefill_worker_whose_kv_nobody_can_use_is_useless() -> None:
    odd = info("prefill-1")
    odd.canary.block_digest = b"other"
    found = models.check(facts(router(*WORKERS, odd), kvstore(*WORKERS, odd)))
    assert brief(found) == [("warning", "prefill-1")]


def test_workers_of_several_kinds_of_arithmetic_are_named_in_one_sentence() -> None:
    crew = [info(f"decode-{n}", arithmetic="cpu-fma-bfloat16") for n in range(8)]
    crew += [info("decode-8", arithmetic="cpu-amx-bfloat16"), info("prefill-0")]
    found = models.check(facts(router(*crew), kvstore(*crew)))
    assert brief(found) == [("warning", "demo"), ("warning", "prefill-0")]
    mixed, useless = found.findings
    assert mixed.what == (
        "Workers of demo compute with 3 kinds of arithmetic: one that is not named (prefill-0), "
        "cpu-amx-bfloat16 (decode-8) and cpu-fma-bfloat16 (decode-0, decode-1, decode-2, decode-3, "
        "decode-4, 3 more). KV does not travel from one kind to the other, and an answer that has to "
        "move there may go on with other tokens"
    )
    assert "arithmetic" in useless.what


def test_a_worker_whose_check_at_load_found_something_is_named() -> None:
    trouble = "that kernels for amx do not keep bits"
    odd = info("decode-1", identity_trouble=trouble)
    found = only(models.check(facts(router(*WORKERS, odd), kvstore(*WORKERS, odd))))
    assert found.subject == "decode-1"
    assert found.what == f"Its check at load found {trouble}"
    assert "--require-identical-tokens" in found.advice


def test_workers_of_one_kind_of_arithmetic_are_well() -> None:
    crew = [info(name, arithmetic="cpu-fma-float32") for name in ("decode-0", "prefill-0")]
    assert models.check(facts(router(*crew), kvstore(*crew))).findings == []
    # Another model may be computed on something else.
    other = info("decode-1", model_name="b", model_fingerprint="two", arithmetic="cuda-sm90")
    found = models.check(facts(router(*crew, other), kvstore(*crew, other)))
    assert brief(found) == [("warning", "b")]
    assert "no router was told of it" in found.findings[0].what


def test_shorter_contexts_are_noted() -> None:
    short = info("decode-2", max_model_len=512)
    assert brief(models.check(facts(kvstore(*WORKERS, short)))) == [("note", "decode-2")]


@pytest.mark.parametrize("reason", ["STALE_EPOCH", "DUPLICATE_WORKER"])
def test_two_of_one_name_are_told_with_their_addresses(reason: str) -> None:
    twin = process_pb2.RefusedWorker(
        worker=info(address="127.0.0.1:9999"), reason=reason, message="no"
    )
    found = membership.check(facts(router(info()), kvstore(info(), refused=[twin]), worker(info())))
    assert brief(found) == [("wrong", "decode-0")]
    assert (
        "2 processes call themselves so, at 127.0.0.1:7200 and 127.0.0.1:9999" in only(found).what
    )


def test_two_of_one_name_that_answer_are_told_too() -> None:
    twin = worker(info(address="127.0.0.1:9999"), membership=process_pb2.MEMBERSHIP_REFUSED)
    found = membership.check(facts(router(info()), kvstore(info()), worker(info()), twin))
    assert brief(found) == [("wrong", "decode-0")]


def test_workers_without_a_kvstore_are_told_together() -> None:
    away = [
        worker(each, membership=process_pb2.MEMBERSHIP_AWAY, membership_error="refused")
        for each in WORKERS
    ]
    gone = silent("kvstore", KVSTORE, Fault.NOBODY)
    found = membership.check(facts(router(*WORKERS, is_following=True), gone, *away))
    assert brief(found) == [("wrong", "decode-0, decode-1 and prefill-0")]


@pytest.mark.parametrize(
    ("standing", "status"),
    [
        (process_pb2.MEMBERSHIP_ALONE, "warning"),
        (process_pb2.MEMBERSHIP_REFUSED, "wrong"),
        (process_pb2.MEMBERSHIP_JOINED, "wrong"),
    ],
)
def test_a_worker_that_runs_outside_the_mesh_is_named(
    standing: process_pb2.Membership.ValueType, status: str
) -> None:
    outside = worker(info("decode-5"), membership=standing)
    crew = map(worker, WORKERS)
    found = membership.check(facts(router(*WORKERS), kvstore(*WORKERS), *crew, outside))
    assert brief(found) == [(status, "decode-5")]


def test_an_older_incarnation_at_the_kvstore_is_told() -> None:
    new = worker(info(epoch=6))
    assert brief(membership.check(facts(router(info()), kvstore(info()), new))) == [
        ("wrong", "decode-0")
    ]


def test_kvstores_with_different_members_are_told() -> None:
    other = kvstore(info("decode-0"), address="127.0.0.1:7001")
    found = membership.check(
        facts(router(*WORKERS), kvstore(*WORKERS), other, *map(worker, WORKERS))
    )
    assert brief(found) == [("wrong", "kvstore at 127.0.0.1:7001")]
    assert "decode-1 and prefill-0" in only(found).what


def test_a_router_that_hears_nothing_is_told() -> None:
    # A message that is merged in cannot take a truth back.
    deaf = router(*WORKERS)
    assert deaf.said is not None
    deaf.said.router.is_following = False
    assert brief(membership.check(facts(deaf, kvstore(*WORKERS), *map(worker, WORKERS)))) == [
        ("wrong", "router")
    ]


def test_a_router_that_does_not_know_a_member_is_told() -> None:
    found = membership.check(facts(router(WORKERS[0]), kvstore(*WORKERS), *map(worker, WORKERS)))
    assert brief(found) == [("wrong", "router")]
    assert "decode-1 and prefill-0" in only(found).what


def with_closed_session(seen: Examined) -> Examined:
    assert seen.said is not None
    closed = seen.said.router.workers[0]
    closed.session, closed.session_end = process_pb2.SESSION_STATE_CLOSED, "no way"
    return seen


def test_a_closed_session_counts_only_with_a_worker_that_answers() -> None:
    seen = with_closed_session(router(info()))
    found = membership.check(facts(seen, kvstore(info()), worker(info())))
    assert brief(found) == [("wrong", "decode-0")]
    assert "has no session with it (no way)" in only(found).what
    frozen = silent("decode-0", "127.0.0.1:7200", Fault.SILENT)
    assert brief(membership.check(facts(seen, kvstore(info()), frozen))) == []


def degraded(*worker_ids: str, text: bytes = b"") -> Examined:
    registered = [replace_canary(name, text) for name in ("decode-0", "decode-1")]
    seen = router(*registered)
    assert seen.said is not None
    for each in seen.said.router.workers:
        if each.worker.worker_id in worker_ids:
            each.difference, each.advice = "tokenizer", ADVICE
    return seen


def replace_canary(worker_id: str, text: bytes) -> types_pb2.WorkerInfo:
    changed = info(worker_id)
    changed.canary.text_digest = text or worker_id.encode()
    return changed


def test_a_degraded_worker_is_named_with_the_routers_advice() -> None:
    found = parity.check(facts(degraded("decode-1")))
    assert brief(found) == [("wrong", "decode-1")]
    assert "the step 'tokenizer'" in only(found).what
    assert only(found).advice == "Give both the same model folder"


def test_where_all_workers_agree_against_it_the_router_is_the_odd_one() -> None:
    found = parity.check(facts(degraded("decode-0", "decode-1", text=b"same")))
    assert brief(found) == [("wrong", "router")]
    assert brief(parity.check(facts(degraded("decode-0", "decode-1")))) == [
        ("wrong", "decode-0"),
        ("wrong", "decode-1"),
    ]


def of_router(number: int, **digests: bytes) -> Examined:
    own = router(address=f"127.0.0.1:71{number:02}")
    assert own.said is not None
    own.said.router.models[0].canary.CopyFrom(canary(**digests))
    return own


@pytest.mark.parametrize(
    ("digests", "words"),
    [({"text": b"x"}, "chat template renders"), ({"token": b"x"}, "tokenizer reads")],
)
def test_a_router_that_reads_otherwise_than_others_is_odd(
    digests: dict[str, bytes], words: str
) -> None:
    found = parity.check(facts(of_router(0), of_router(1), of_router(2, **digests)))
    assert brief(found) == [("wrong", "router at 127.0.0.1:7102")]
    assert words in only(found).what
