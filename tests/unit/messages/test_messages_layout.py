"""What two workers must agree on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemesh.core.kv import KvGroup, KvLayout
from pagemesh.errors import FailedPreconditionError
from pagemesh.messages import layout_from_proto, layout_to_proto, require_same_kv
from pagemesh.v1 import types_pb2

LAYOUT = KvLayout.uniform(
    block_size=16, num_layers=4, num_kv_heads=2, head_dim=64, dtype="bfloat16"
)
WORKER = types_pb2.WorkerInfo(
    worker_id="p",
    model_fingerprint="model",
    kv_layout=layout_to_proto(LAYOUT),
    arithmetic="cpu-fma-bfloat16",
)


def test_a_layout_keeps_all_its_fields() -> None:
    assert layout_to_proto(LAYOUT) == types_pb2.KvLayout(
        block_size=16, layer_count=4, kv_head_count=2, head_dim=64, dtype="bfloat16"
    )
    assert layout_from_proto(layout_to_proto(LAYOUT)) == LAYOUT


def test_a_layout_of_two_groups_is_not_told_as_if_it_had_one() -> None:
    groups = KvGroup(3, 2, 64), KvGroup(1, 2, 128)
    with pytest.raises(ValueError, match="expected 1"):
        layout_to_proto(KvLayout(16, "bfloat16", groups))


def test_equal_model_layout_and_arithmetic_are_accepted() -> None:
    require_same_kv(WORKER, "model", layout_to_proto(LAYOUT), "cpu-fma-bfloat16")


def test_another_model_is_refused_by_name() -> None:
    with pytest.raises(FailedPreconditionError, match=r"'other'.*p serves 'model'") as caught:
        require_same_kv(WORKER, "other", layout_to_proto(LAYOUT), WORKER.arithmetic)
    assert caught.value.reason == "MODEL_MISMATCH"


def test_another_layout_is_refused_with_both_shapes() -> None:
    other = layout_to_proto(LAYOUT)
    other.block_size = 32
    with pytest.raises(FailedPreconditionError, match=r"32 tokens.*16 tokens x 4 layers") as caught:
        require_same_kv(WORKER, "model", other, WORKER.arithmetic)
    assert caught.value.reason == "LAYOUT_MISMATCH"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_kv_of_another_type_is_refused_with_both(dtype: str) -> None:
    other = layout_to_proto(replace(LAYOUT, dtype=dtype))
    with pytest.raises(FailedPreconditionError, match=f"64 {dtype}.* 64 bfloat16") as caught:
        require_same_kv(WORKER, "model", other, WORKER.arithmetic)
    assert caught.value.reason == "LAYOUT_MISMATCH"


@pytest.mark.parametrize(
    ("arithmetic", "named"),
    [("cpu-amx-bfloat16", "cpu-amx-bfloat16"), ("", "one that is not named")],
    ids=["another", "not told"],
)
def test_another_arithmetic_is_refused_with_both_names(arithmetic: str, named: str) -> None:
    message = f"the caller's arithmetic is {named}, but that of p is cpu-fma-bfloat16"
    with pytest.raises(FailedPreconditionError, match=message) as caught:
        require_same_kv(WORKER, "model", layout_to_proto(LAYOUT), arithmetic)
    assert caught.value.reason == "ARITHMETIC_MISMATCH"


def test_workers_that_do_not_tell_their_arithmetic_are_of_one_class() -> None:
    untold = types_pb2.WorkerInfo(model_fingerprint="model", kv_layout=layout_to_proto(LAYOUT))
    require_same_kv(untold, "model", layout_to_proto(LAYOUT), "")
