"""How one request of a session ends, where that is hard to bring about from outside."""

from pagemesh.decode.active_request import ActiveRequest
from pagemesh.decode.outbox import Outbox
from pagemesh.decode.remote_prefill import RemotePrefiller
from pagemesh.decode.service import DECODE_ROLE
from pagemesh.decode.submission import parse_submit
from pagemesh.engine.interface import FinishReason, RequestOutput
from pagemesh.v1 import decode_pb2, types_pb2
from tests.fakes.engine import FakeEngine
from tests.support.workers import running_worker

SUBMIT = decode_pb2.Submit(
    handle=7, prompt_token_ids=[10, 11], sampling=types_pb2.SamplingParams(max_tokens=4)
)


async def test_who_has_a_late_request_cancelled_does_not_hide_that_it_was_late() -> None:
    SUBMIT.timeout.nanos = 1
    async with running_worker(DECODE_ROLE, FakeEngine()) as decode:
        outbox, ended = Outbox(), list[int]()
        prefiller = RemotePrefiller(decode.worker)
        request = ActiveRequest(
            decode.worker, prefiller, outbox, parse_submit(SUBMIT, "r"), ended.append
        )
        request.start()
        # The import of its KV noticed that its time is over before its own timer did.
        request._on_event(RequestOutput("r", finish_reason=FinishReason.CANCELLED))
        (output,) = await outbox.take()
        assert output.error.reason == "DEADLINE_EXCEEDED"
        assert ended == [7]
        await prefiller.close()
