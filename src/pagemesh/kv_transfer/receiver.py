"""The receiving side: nothing is written into a block before its message was found to be right.

What was received and verified of a grant's KV outlives the streams that carried it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pagemesh.core.kv import KvGrant, KvLayout
from pagemesh.errors import KvIntegrityError
from pagemesh.kv_transfer.frames import Frame, decode_frame, num_blocks_of
from pagemesh.kv_transfer.transports import ReceivingTransport
from pagemesh.messages import describe_arithmetic, describe_layout
from pagemesh.v1 import kv_transfer_pb2


class Accepted(NamedTuple):
    """What a message brought that was right."""

    num_bytes: int = 0
    """Of KV, which is in its blocks now."""
    ready_seconds: float = 0.0
    """Of a message with KV: when its sender had that, counted from the sending of the header."""
    first_token: kv_transfer_pb2.FirstToken | None = None


class KvReceiver:
    """Verifies the messages of one stream, in order, and brings what is right into granted blocks.

    A message is checked before anything of it is used: its form, its checksum, whose it is, its place,
    the hashes of its blocks, its KV. Parts may come in any order of blocks and layers, but each
    (block, layer) only once. The first wrong message raises KvIntegrityError, and so does every message
    after it; what was verified before stays in the blocks and counts in `received`. Not thread-safe:
    one message at a time, and one stream at a time for each `ReceivedKv`.
    """

    def __init__(
        self,
        choose_transport: Callable[[kv_transfer_pb2.KvHeader], ReceivingTransport],
        stamp: kv_transfer_pb2.KvStamp,
        received: ReceivedKv,
    ) -> None:
        """`stamp` is what all messages must have: the sender that was asked, its epoch,
        model, layout and arithmetic, and the number that was drawn for the stream.

        `choose_transport` gives the one that the header announces; what it raises, `take` does.
        """
        self._choose_transport = choose_transport
        self._stamp = stamp
        self._received = received
        self._first_block = self._end_block = received.begin_stream()
        self._transport: ReceivingTransport | None = None  # unknown before the header
        self._has_first_token = False
        self._failed = False

    @property
    def has_all_announced(self) -> bool:
        """Whether the header came, and all the blocks that it promised: perhaps fewer than are missing."""
        return self._transport is not None and self._received.num_verified_blocks >= self._end_block

    def open(self, message: bytes) -> Frame:
        """The first half: form, checksum and sender are right. Reads the message once, and nothing else."""
        if self._failed:
            raise KvIntegrityError("a message follows a wrong one", reason="KV_AFTER_ERROR")
        with self._failing():
            frame = decode_frame(message)
            check_stamp(self._stamp, frame.content.stamp)
        return frame

    def take(self, frame: Frame) -> Accepted:
        """The second half: everything else is right, and KV is in its blocks.

        Copies memory when the message is one of blocks: then it belongs on a thread.
        """
        with self._failing():
            return self._take(frame.content, frame.payload)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except KvIntegrityError:
            self._failed = True
            raise

    def _take(self, content: kv_transfer_pb2.KvContent, payload: memoryview) -> Accepted:
        kind = content.WhichOneof("kind")
        if kind != "header" and self._transport is None:
            raise KvIntegrityError(f"the stream begins with {kind}", reason="KV_NO_HEADER")
        if kind != "blocks" and payload:
            raise KvIntegrityError(f"a {kind} has a payload", reason="KV_WRONG_SIZE")
        match kind:
            case "header":
                self._take_header(content.header)
            case "blocks":
                num_bytes = self._take_blocks(content.blocks, payload)
                return Accepted(num_bytes, content.blocks.ready_seconds)
            case "first_token":
                self._take_first_token()
                return Accepted(first_token=content.first_token)
            case "alive":
                pass
            case _:
                raise KvIntegrityError("a message is empty", reason="KV_EMPTY")
        return Accepted()

    def _take_header(self, header: kv_transfer_pb2.KvHeader) -> None:
        if self._transport is not None:
            raise KvIntegrityError("the header came twice", reason="KV_DUPLICATE")
        num_missing = self._received.end_block - self._first_block
        if header.block_count > num_missing:
            raise KvIntegrityError(
                f"{header.block_count} blocks are announced, but {num_missing} are missing",
                reason="KV_OUT_OF_RANGE",
            )
        self._end_block = self._first_block + header.block_count
        self._transport = self._choose_transport(header)

    def _take_first_token(self) -> None:
        if self._has_first_token:
            raise KvIntegrityError("the first token came twice", reason="KV_DUPLICATE")
        self._has_first_token = True

    def _take_blocks(self, blocks: kv_transfer_pb2.KvBlocks, payload: memoryview) -> int:
        run = BlockRun(
            blocks.first_block_index,
            blocks.first_block_index + blocks.block_count,
            blocks.first_layer,
            blocks.first_layer + blocks.layer_count,
        )
        self._check_range(run, blocks.token_count)
        self._check_names(run, blocks)
        assert self._transport is not None, "blocks came before the header"
        num_bytes = self._transport.unload(blocks, payload, self._received.block_ids(run))
        self._received.add(run, blocks.reused_token_count)
        return num_bytes

    def _check_range(self, run: BlockRun, token_count: int) -> None:
        first, end = run.first_block, run.end_block
        received = self._received
        if not self._first_block <= first < end <= self._end_block:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) are not in [{self._first_block}, {self._end_block})",
                reason="KV_OUT_OF_RANGE",
            )
        if not run.first_layer < run.end_layer <= received.layout.num_layers:
            raise KvIntegrityError(
                f"layers [{run.first_layer}, {run.end_layer}) are not in "
                f"[0, {received.layout.num_layers})",
                reason="KV_OUT_OF_RANGE",
            )
        block_size = received.layout.block_size
        num_tokens = min(end * block_size, received.num_tokens) - first * block_size
        if token_count != num_tokens:
            raise KvIntegrityError(
                f"blocks [{first}, {end}) carry {token_count} tokens, not {num_tokens}",
                reason="KV_WRONG_COUNT",
            )
        if received.overlaps(run):
            raise KvIntegrityError(
                f"blocks [{first}, {end}) came twice in part", reason="KV_DUPLICATE"
            )

    def _check_names(self, run: BlockRun, blocks: kv_transfer_pb2.KvBlocks) -> None:
        hashes = self._received.grant.block_hashes
        wanted = [
            hashes[block] if block < len(hashes) else b""
            for block in range(run.first_block, run.end_block)
        ]
        if list(blocks.block_hashes) != wanted:
            raise KvIntegrityError(
                f"blocks [{run.first_block}, {run.end_block}) are of another prompt",
                reason="KV_WRONG_HASH",
            )


def check_stamp(expected: kv_transfer_pb2.KvStamp, actual: kv_transfer_pb2.KvStamp) -> None:
    """Raise KvIntegrityError unless a message is of the sender, epoch, model, layout, arithmetic and stream expected."""
    if actual == expected:
        return
    if actual.worker_id != expected.worker_id:
        raise KvIntegrityError(
            f"the sender is {actual.worker_id!r}, but {expected.worker_id!r} was asked",
            reason="KV_WRONG_SENDER",
        )
    if actual.epoch != expected.epoch:
        raise KvIntegrityError(
            f"the sender's epoch is {actual.epoch}, but {expected.epoch} was asked",
            reason="KV_WRONG_EPOCH",
        )
    if actual.model_fingerprint != expected.model_fingerprint:
        raise KvIntegrityError(
            f"the blocks are of model {actual.model_fingerprint!r}, "
            f"not {expected.model_fingerprint!r}",
            reason="KV_WRONG_MODEL",
        )
    if actual.kv_layout != expected.kv_layout:
        raise KvIntegrityError(
            f"the blocks have {describe_layout(actual.kv_layout)}", reason="KV_WRONG_LAYOUT"
        )
    if actual.arithmetic != expected.arithmetic:
        raise KvIntegrityError(
            f"the blocks were computed with arithmetic {describe_arithmetic(actual.arithmetic)}, "
            f"but that of the receiver is {describe_arithmetic(expected.arithmetic)}",
            reason="KV_WRONG_ARITHMETIC",
        )
    raise KvIntegrityError("the message is of another stream", reason="KV_WRONG_STREAM")


class BlockRun(NamedTuple):
    """Blocks [first_block, end_block) of a block table in layers [first_layer, end_layer)."""

    first_block: int
    end_block: int
    first_layer: int
    end_layer: int

    @property
    def layer_mask(self) -> int:
        """Bit i stands for layer i."""
        return (1 << self.end_layer) - (1 << self.first_layer)


class ReceivedKv:
    """Which blocks of a grant hold verified KV, layer by layer. Not thread-safe."""

    def __init__(self, grant: KvGrant, layout: KvLayout, num_tokens: int) -> None:
        """`num_tokens` is how many there are in all."""
        self.grant = grant
        self.layout = layout
        self.num_tokens = num_tokens
        self._first_block = grant.num_held_tokens // layout.block_size
        self.end_block = num_blocks_of(num_tokens, layout.block_size)
        self._all_layers = (1 << layout.num_layers) - 1
        self._layers = [0] * (self.end_block - self._first_block)  # bit masks of verified layers
        self._num_complete = 0  # leading blocks, behind the held ones, that have all layers
        # Tokens of earlier streams that their senders did not compute, where this one began, and up to where
        # its sender did not.
        self._num_reused_before = 0
        self._stream_start = self.num_verified_tokens
        self._reused_end = 0

    @property
    def num_verified_blocks(self) -> int:
        """Leading blocks whose KV is there in all layers: held ones, then verified ones."""
        return self._first_block + self._num_complete

    @property
    def num_verified_tokens(self) -> int:
        """Leading tokens whose KV is in the blocks."""
        return min(self.num_verified_blocks * self.layout.block_size, self.num_tokens)

    @property
    def is_complete(self) -> bool:
        """Whether all KV is in the blocks."""
        return self._num_complete == len(self._layers)

    @property
    def num_reused_tokens(self) -> int:
        """Of the received tokens, those whose KV no sender had to compute for the stream that brought it."""
        return self.num_reused_with(min(self._reused_end, self.num_verified_tokens))

    def num_reused_with(self, reused_end: int) -> int:
        """Likewise, when this stream brings KV that its sender did not compute up to this token."""
        return self._num_reused_before + max(
            0, min(reused_end, self.num_tokens) - self._stream_start
        )

    def begin_stream(self) -> int:
        """Forget what lies behind the verified blocks, for a stream that begins there; gives their number.

        Another sender sends whole blocks. So each (block, layer) comes once in a stream, and a block
        that counts as verified is never written again.
        """
        self._num_reused_before = self.num_reused_tokens
        self._stream_start = self.num_verified_tokens
        self._reused_end = 0
        for index in range(self._num_complete, len(self._layers)):
            self._layers[index] = 0
        return self.num_verified_blocks

    def overlaps(self, run: BlockRun) -> bool:
        """Whether any block of the run, which lies in the grant, has one of its layers already."""
        return any(layers & run.layer_mask for layers in self._layers[self._indices(run)])

    def add(self, run: BlockRun, reused_end: int) -> None:
        """Count a run as verified: its KV is in its blocks.

        That of tokens in front of `reused_end` was not computed for the stream.
        """
        self._reused_end = max(self._reused_end, reused_end)
        indices = self._indices(run)
        for index in range(indices.start, indices.stop):
            self._layers[index] |= run.layer_mask
        while not self.is_complete and self._layers[self._num_complete] == self._all_layers:
            self._num_complete += 1

    def block_ids(self, run: BlockRun) -> tuple[int, ...]:
        """Where a run belongs."""
        return self.grant.block_ids[run.first_block : run.end_block]

    def _indices(self, run: BlockRun) -> slice:
        return slice(run.first_block - self._first_block, run.end_block - self._first_block)
