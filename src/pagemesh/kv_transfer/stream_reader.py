"""One KV stream, as the thread sees it that reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pagemesh.errors import UnavailableError
from pagemesh.kv_transfer.links import StreamTimer
from pagemesh.kv_transfer.receiver import Accepted, KvReceiver
from pagemesh.rpc.channels import BulkCall, end_bulk_call


class StreamReader:
    """Verifies message by message, until all that was wanted is there."""

    def __init__(
        self,
        call: BulkCall,
        receiver: KvReceiver,
        timer: StreamTimer,
        copying: threading.Semaphore,
        tell: Callable[[Accepted], object],
        is_over: Callable[[StreamReader], bool],
    ) -> None:
        """`tell` is called on the thread, with what each message brought. Of all streams, only so many
        copy at once as `copying` lets: more make nothing faster, and keep others from the GIL.
        """
        self.receiver = receiver
        self.has_token = False
        """Whether the first token came."""
        self._call = call
        self._timer = timer
        self._copying = copying
        self._tell = tell
        self._is_over = is_over
        self._heard_at: float | None = None

    @property
    def seconds_silent(self) -> float:
        """Since the last message, or since somebody listens; 0 as long as nobody does."""
        return 0.0 if self._heard_at is None else time.monotonic() - self._heard_at

    def run(self) -> None:
        """Read the stream and end it.

        Raises UnavailableError when it ends early, what `KvReceiver` raises, and grpc.RpcError.
        """
        self._heard_at = time.monotonic()
        try:
            for message in self._call:
                # Who copies does not listen: that takes as long as it takes, and is not the sender's silence.
                self._heard_at = None
                accepted = self._accept(message)
                self._heard_at = time.monotonic()
                self._timer.on_message(accepted.num_bytes, accepted.ready_seconds)
                self.has_token |= accepted.first_token is not None
                self._tell(accepted)
                if self._is_over(self):
                    return
            raise UnavailableError("the stream ended before all KV", reason="KV_INCOMPLETE")
        finally:
            # The sender may keep its blocks until then.
            end_bulk_call(self._call)

    def stop(self) -> None:
        """Have `run` end soon, from any thread: behind the message that it copies."""
        self._call.cancel()

    def _accept(self, message: bytes) -> Accepted:
        frame = self.receiver.open(message)
        if not frame.content.HasField("blocks"):
            return self.receiver.take(frame)
        with self._copying:
            return self.receiver.take(frame)
