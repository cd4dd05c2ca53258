"""Registration, event numbers and heartbeats."""

from __future__ import annotations

import pytest

from pagemesh.errors import FailedPreconditionError, InvalidRequestError
from pagemesh.kvstore.changes import Change, EventKind, Joined, Left, Loaded
from pagemesh.kvstore.members import Verdict
from pagemesh.v1 import types_pb2
from tests.unit.kvstore.builders import Store, make_worker

APPLY = Verdict(apply=True)
IGNORE = Verdict()


def test_a_registered_worker_is_a_member_and_a_change() -> None:
    store = Store()
    member, is_new = store.members.register(make_worker("a"))
    assert is_new
    assert member.joined == Change(101, Joined(make_worker("a")))
    assert [m.info.worker_id for m in store.members] == ["a"]


def test_registering_the_same_incarnation_again_changes_nothing() -> None:
    store = Store()
    first, _ = store.members.register(make_worker("a"))
    again, is_new = store.members.register(make_worker("a"))
    assert again is first
    assert not is_new
    assert store.log.revision == 101


def test_a_newer_epoch_replaces_and_an_older_one_is_refused() -> None:
    store = Store()
    store.members.register(make_worker("a", epoch=5))
    store.members.register(make_worker("a", epoch=6, address="127.0.0.1:7002"))
    with pytest.raises(FailedPreconditionError, match="epoch 5, but epoch 6") as caught:
        store.members.register(make_worker("a", epoch=5))
    assert caught.value.reason == "STALE_EPOCH"
    assert caught.value.param == "epoch"
    assert [m.info.address for m in store.members] == ["127.0.0.1:7002"]


def test_two_processes_under_one_name_and_epoch_are_told_apart() -> None:
    store = Store()
    store.members.register(make_worker("a", address="127.0.0.1:7001"))
    with pytest.raises(
        FailedPreconditionError, match=r"127\.0\.0\.1:7001, now it comes from 127\.0\.0\.1:9"
    ) as caught:
        store.members.register(make_worker("a", address="127.0.0.1:9999"))
    assert caught.value.reason == "DUPLICATE_WORKER"
    assert [m.info.address for m in store.members] == ["127.0.0.1:7001"]


def test_a_worker_of_the_same_model_with_blocks_of_another_shape_is_refused() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    with pytest.raises(FailedPreconditionError) as caught:
        store.members.register(make_worker("b", block_size=32))
    assert (caught.value.reason, caught.value.param) == ("LAYOUT_MISMATCH", "worker.kv_layout")
    assert caught.value.message == (
        "worker 'b' has KV blocks of 32 tokens x 2 layers x 4 heads x 8 float32, but 'a' at "
        "127.0.0.1:7001 has 16 tokens x 2 layers x 4 heads x 8 float32 for the same model"
    )
    assert len(list(store.members)) == 1


@pytest.mark.parametrize(("first", "second"), [("float32", "int8"), ("int8", "float8_e4m3fn")])
def test_a_worker_of_the_same_model_with_kv_of_another_type_is_refused(
    first: str, second: str
) -> None:
    store = Store()
    workers = [make_worker(name) for name in "ab"]
    for worker, dtype in zip(workers, (first, second), strict=True):
        worker.kv_layout.dtype = dtype
    store.members.register(workers[0])
    with pytest.raises(FailedPreconditionError, match=f"8 {second}, but .* 8 {first}") as caught:
        store.members.register(workers[1])
    assert caught.value.reason == "LAYOUT_MISMATCH"
    assert len(list(store.members)) == 1


def test_blocks_may_have_another_shape_for_another_model_or_a_new_incarnation() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    store.members.register(make_worker("a", epoch=2, block_size=32))
    other = make_worker("b", block_size=8, fingerprint="model-b", model_name="other")
    store.members.register(other)
    assert sorted(m.info.kv_layout.block_size for m in store.members) == [8, 32]


def test_a_worker_of_another_model_under_the_same_name_is_refused_until_that_is_free() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    new = make_worker("b", fingerprint="model-b", address="127.0.0.1:7002")
    with pytest.raises(FailedPreconditionError) as caught:
        store.members.register(new)
    assert (caught.value.reason, caught.value.param) == (
        "MODEL_MISMATCH",
        "worker.model_fingerprint",
    )
    assert caught.value.message == (
        "worker 'b' serves model model-b as 'demo', but 'a' at 127.0.0.1:7001 serves model model-a under "
        "that name"
    )
    assert [m.info.worker_id for m in store.members] == ["a"]
    store.members.drop("a")
    store.members.register(new)
    assert [m.info.worker_id for m in store.members] == ["b"]


def test_one_model_may_have_two_names() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    store.members.register(make_worker("b", model_name="alias"))
    assert len(list(store.members)) == 2


@pytest.mark.parametrize("num_blocks", [2**32 + 1, 2**60], ids=["one-too-many", "absurd"])
def test_more_blocks_than_any_machine_has_are_refused(num_blocks: int) -> None:
    store = Store()
    store.members.register(make_worker("most", num_blocks=2**32))
    with pytest.raises(InvalidRequestError, match=f"is {num_blocks}, but 4294967296") as caught:
        store.members.register(make_worker("a", num_blocks=num_blocks))
    assert caught.value.param == "worker.block_count"
    assert len(list(store.members)) == 1


@pytest.mark.parametrize(
    "field",
    [
        *("worker_id", "epoch", "role", "address", "model_name", "model_fingerprint"),
        *("block_count", "max_model_len", "max_num_seqs"),
    ],
)
def test_incomplete_facts_are_refused_by_name(field: str) -> None:
    store = Store()
    info = make_worker()
    info.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=f"worker.{field} is") as caught:
        store.members.register(info)
    assert caught.value.param == f"worker.{field}"
    assert len(list(store.members)) == 0


@pytest.mark.parametrize(
    "field", ["block_size", "layer_count", "kv_head_count", "head_dim", "dtype"]
)
def test_blocks_without_a_shape_are_refused_by_name(field: str) -> None:
    store = Store()
    info = make_worker()
    info.kv_layout.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=rf"worker\.kv_layout\.{field} is") as caught:
        store.members.register(info)
    assert caught.value.param == f"worker.kv_layout.{field}"


def test_numbers_of_an_unknown_type_are_refused() -> None:
    store = Store()
    info = make_worker()
    info.kv_layout.dtype = "float33"
    with pytest.raises(InvalidRequestError, match=r"is 'float33', but must be one of .*bfloat16"):
        store.members.register(info)
    assert len(list(store.members)) == 0


@pytest.mark.parametrize("field", ["worker_id", "address", "model_name", "model_fingerprint"])
def test_names_that_are_too_long_to_be_sent_to_every_router_are_refused(field: str) -> None:
    store = Store()
    info = make_worker()
    setattr(info, field, "\N{GREEK SMALL LETTER MU}" * 512)
    store.members.register(info)
    setattr(info, field, "m" * 1025)
    info.epoch += 1
    with pytest.raises(
        InvalidRequestError, match="has 1025 bytes, but 1024 are the most"
    ) as caught:
        store.members.register(info)
    assert caught.value.param == f"worker.{field}"


def test_facts_that_nobody_knows_must_not_be_too_many() -> None:
    store = Store()
    info = make_worker()
    # Field 99, of 17,000 bytes.
    info.MergeFromString(b"\x9a\x06\xe8\x84\x01" + bytes(17_000))
    with pytest.raises(InvalidRequestError, match=r"worker has 17\d+ bytes, but 16384") as caught:
        store.members.register(info)
    assert caught.value.param == "worker"


@pytest.mark.parametrize("field", ["text_digest", "token_digest", "block_digest"])
def test_a_canary_is_made_of_digests(field: str) -> None:
    store = Store()
    info = make_worker()
    setattr(info.canary, field, bytes(1000))
    with pytest.raises(InvalidRequestError, match="has 1000 bytes, but must have 16") as caught:
        store.members.register(info)
    assert caught.value.param == f"worker.canary.{field}"
    setattr(info.canary, field, bytes(16))
    store.members.register(info)


def test_only_the_present_incarnation_can_open_a_stream() -> None:
    store = Store()
    store.members.register(make_worker("a", epoch=5))
    for worker_id, epoch, reason in [
        ("a", 4, "STALE_EPOCH"),
        ("a", 6, "UNKNOWN_WORKER"),
        ("b", 5, "UNKNOWN_WORKER"),
    ]:
        with pytest.raises(FailedPreconditionError) as caught:
            store.members.attach(worker_id, epoch)
        assert caught.value.reason == reason


def test_events_in_order_apply_and_late_ones_do_not() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    stream = store.members.attach("a", 1)
    verdicts = [store.members.accept(stream, n, EventKind.CHANGED) for n in (1, 2, 2, 1, 3)]
    assert verdicts == [APPLY, APPLY, IGNORE, IGNORE, APPLY]


def test_a_gap_asks_once_for_a_snapshot_and_ends_with_it() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    stream = store.members.attach("a", 1)
    events = [
        (1, EventKind.CHANGED, APPLY),
        (3, EventKind.CHANGED, Verdict(forget=True, resync=True)),
        (4, EventKind.CHANGED, Verdict()),
        (5, EventKind.BEAT, Verdict(apply=True)),
        (6, EventKind.CLEARED, APPLY),
        (7, EventKind.CHANGED, APPLY),
    ]
    for sequence, kind, verdict in events:
        assert store.members.accept(stream, sequence, kind) == verdict, sequence


def test_another_gap_asks_again_because_the_snapshot_may_be_what_was_lost() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    stream = store.members.attach("a", 1)
    assert store.members.accept(stream, 2, EventKind.BEAT).resync
    assert store.members.accept(stream, 4, EventKind.CHANGED).resync


def test_a_snapshot_right_behind_a_gap_needs_no_asking() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    stream = store.members.attach("a", 1)
    assert store.members.accept(stream, 17, EventKind.CLEARED) == APPLY
    assert store.members.accept(stream, 18, EventKind.CHANGED) == APPLY


def test_a_later_stream_takes_over_and_the_end_of_the_former_is_harmless() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    former = store.members.attach("a", 1)
    present = store.members.attach("a", 1)
    with pytest.raises(FailedPreconditionError) as caught:
        store.members.accept(former, 1, EventKind.BEAT)
    assert caught.value.reason == "STREAM_REPLACED"
    assert not store.members.detach(former)
    assert store.members.accept(present, 1, EventKind.CLEARED) == APPLY
    assert store.members.detach(present)
    assert len(list(store.members)) == 0


def test_what_a_former_stream_said_is_doubtful_until_the_later_one_begins_anew() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    former = store.members.attach("a", 1)
    assert store.members.accept(former, 1, EventKind.CHANGED) == APPLY
    present = store.members.attach("a", 1)
    assert store.members.accept(present, 2, EventKind.CHANGED) == Verdict(resync=True)
    assert store.members.accept(present, 3, EventKind.CLEARED) == APPLY


def test_the_stream_of_a_replaced_incarnation_is_refused_and_its_end_is_harmless() -> None:
    store = Store()
    store.members.register(make_worker("a", epoch=1))
    old = store.members.attach("a", 1)
    store.members.register(make_worker("a", epoch=2))
    with pytest.raises(FailedPreconditionError):
        store.members.accept(old, 1, EventKind.CHANGED)
    assert not store.members.detach(old)
    assert len(list(store.members)) == 1


def test_a_worker_is_silent_after_three_missed_heartbeats() -> None:
    store = Store()
    for worker_id in ("quiet", "beating", "never-published"):
        store.members.register(make_worker(worker_id))
    store.members.attach("quiet", 1)
    beating = store.members.attach("beating", 1)
    store.clock.advance(2.0)
    store.members.accept(beating, 1, EventKind.BEAT)
    store.clock.advance(1.0)
    assert store.members.silent() == []
    store.clock.advance(0.1)
    assert store.members.silent() == ["quiet", "never-published"]


def test_an_unchanged_load_is_no_change() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    stream = store.members.attach("a", 1)
    store.members.report_load(stream, types_pb2.WorkerLoad(running_request_count=1))
    store.members.report_load(stream, types_pb2.WorkerLoad(running_request_count=1))
    assert store.log.revision == 102
    store.members.report_load(stream, types_pb2.WorkerLoad(running_request_count=2))
    assert store.log.revision == 103


def test_the_present_members_come_in_order_of_their_revisions() -> None:
    store = Store()
    store.members.register(make_worker("a"))
    store.members.register(make_worker("b"))
    store.members.report_load(store.members.attach("a", 1), types_pb2.WorkerLoad())
    store.members.register(make_worker("c"))
    store.members.drop("b")
    assert store.members.present() == [
        Change(101, Joined(make_worker("a"))),
        Change(103, Loaded("a", types_pb2.WorkerLoad())),
        Change(104, Joined(make_worker("c"))),
    ]
    assert store.log.since(104) == [Change(105, Left("b"))]
