"""By how many bytes this process grows while it makes and ends calls: `python -m tests.support.call_growth ADDRESS HOW`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

import grpc
import psutil

from pagemesh.rpc.channels import BulkCall, end_bulk_call, open_bulk_channel

NUM_CALLS: Final = 1_500
NUM_FIRST: Final = 300
"""Behind these, what gRPC keeps for itself is there."""


def behind_two_messages(call: BulkCall) -> None:
    """The reader has what it wants."""
    messages = iter(call)
    assert [next(messages), next(messages)] == [b"first", b"second"]
    end_bulk_call(call)


def stopped(call: BulkCall) -> None:
    """Another thread ends it while this one reads."""
    messages = iter(call)
    assert [next(messages), next(messages)] == [b"first", b"second"]
    stopper = threading.Thread(target=call.cancel)
    stopper.start()
    try:
        next(messages)
    except grpc.RpcError:
        stopper.join(10)
        end_bulk_call(call)
    else:
        raise AssertionError("there is no third message")


def never_read(call: BulkCall) -> None:
    """No thread came to it; ended twice, which must do no harm."""
    end_bulk_call(call)
    end_bulk_call(call)


ENDS: Final[dict[str, Callable[[BulkCall], None]]] = {
    end.__name__: end for end in (behind_two_messages, stopped, never_read)
}


def growth(address: str, end: Callable[[BulkCall], None]) -> int:
    """Of the resident memory, in bytes."""
    process = psutil.Process()
    with open_bulk_channel(address) as channel:
        stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/any/stream")
        for _ in range(NUM_FIRST):
            end(stream(b"", timeout=20))
        before = process.memory_info().rss
        for _ in range(NUM_CALLS):
            end(stream(b"", timeout=20))
        return process.memory_info().rss - before


if __name__ == "__main__":
    print(growth(sys.argv[1], ENDS[sys.argv[2]]))
