"""The two RPCs that carry KV between workers."""

from __future__ import annotations

from typing import Final

from pagemesh.rpc.channels import RawStream
from pagemesh.telemetry import span_names
from pagemesh.v1 import kv_transfer_pb2, prefill_pb2

PREFILL: Final = RawStream(
    prefill_pb2.DESCRIPTOR.services_by_name["Prefill"], "Prefill", prefill_pb2.PrefillRequest
)
FETCH: Final = RawStream(
    kv_transfer_pb2.DESCRIPTOR.services_by_name["KvTransfer"],
    "Fetch",
    kv_transfer_pb2.FetchRequest,
)

SPAN_NAMES: Final = {PREFILL.path: span_names.PREFILL, FETCH.path: span_names.FETCH}
"""What a call of each is called in a trace, by those who serve it."""
