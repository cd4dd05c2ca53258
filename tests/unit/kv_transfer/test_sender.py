"""What a stream's messages say and carry."""

from __future__ import annotations

from pagemesh.core.kv import KvLayout
from pagemesh.kv_transfer.frames import KvPart
from pagemesh.kv_transfer.sender import KvEncoder
from pagemesh.kv_transfer.transports import PayloadSending
from pagemesh.v1 import kv_transfer_pb2, types_pb2
from tests.fakes.engine import FakeKv
from tests.support.kv_messages import KvMessage

SMALL = KvLayout.uniform(block_size=16, num_layers=2, num_kv_heads=1, head_dim=2, dtype="float32")


def make_encoder() -> tuple[KvEncoder, FakeKv]:
    worker = types_pb2.WorkerInfo(worker_id="p", epoch=7, model_fingerprint="f")
    worker.kv_layout.block_size = 16
    worker.kv_layout.dtype = "float32"
    kv = FakeKv(SMALL, num_blocks=6)
    for block in range(6):
        kv.memory[:, :, block] = block
    return KvEncoder(worker, PayloadSending(kv), stream_nonce=77), kv


def test_every_message_says_whose_it_is() -> None:
    encoder, _ = make_encoder()
    part = KvPart(0, 1, 0, 1, 16)
    for frame in (
        encoder.header(3),
        encoder.first_token(kv_transfer_pb2.FirstToken(token_id=5)),
        encoder.part(part, (5,), [b"a" * 16], 0.0, 0),
    ):
        stamp = KvMessage.of_frame(frame).content.stamp
        assert (stamp.worker_id, stamp.epoch, stamp.model_fingerprint) == ("p", 7, "f")
        assert stamp.stream_nonce == 77
        assert (stamp.kv_layout.block_size, stamp.kv_layout.dtype) == (16, "float32")


def test_a_header_says_how_much_follows() -> None:
    encoder, _ = make_encoder()
    assert KvMessage.of_frame(encoder.header(3)).header.block_count == 3


def test_a_part_carries_its_blocks_in_the_order_of_the_block_table() -> None:
    encoder, kv = make_encoder()
    names = [b"a" * 16, b"b" * 16, b"c" * 16]
    message = KvMessage.of_frame(
        encoder.part(KvPart(1, 3, 1, 1, 40), (5, 0, 4, 2), names, 0.25, 24)
    )
    blocks = message.blocks
    assert (blocks.first_block_index, blocks.block_count) == (1, 3)
    assert (blocks.first_layer, blocks.layer_count) == (1, 1)
    assert (blocks.token_count, blocks.ready_seconds) == (40, 0.25)
    assert blocks.reused_token_count == 24
    assert list(blocks.block_hashes) == [b"b" * 16, b"c" * 16, b""]
    assert message.payload == kv.memory[1:2, :, [0, 4, 2]].tobytes()
