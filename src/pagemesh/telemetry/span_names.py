"""Every attribute that spans have, and their events.

`gen_ai.*` and `error.type` are OpenTelemetry's semantic conventions for generative AI and for errors, ours are
`pagemesh.*`.
"""

from __future__ import annotations

from typing import Final

ERROR_TYPE: Final = "error.type"
"""The error's reason, as in the answer; CANCELLED when the client went away."""

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
CHOICE_COUNT: Final = "gen_ai.request.choice.count"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

REQUEST_ID: Final = "pagemesh.request_id"

ROUTE_POLICY: Final = "pagemesh.route.policy"
ROUTE_WORKER: Final = "pagemesh.route.worker"
"""The decode worker."""
ROUTE_PATH: Final = "pagemesh.route.path"
"""The way on which the prompt's KV is to come there; of `kv_ready`, that on which it came."""
ROUTE_PREFILL: Final = "pagemesh.route.prefill_worker"
ROUTE_SOURCE: Final = "pagemesh.route.source"
"""The worker that KV is pulled from."""
ROUTE_HELD: Final = "pagemesh.route.held_tokens"
"""Leading tokens of the prompt that the decode worker was known to hold."""
ROUTE_PREDICTED: Final = "pagemesh.route.predicted_seconds"
"""Until the first token and all KV in front of it are there."""
ROUTE_SECONDS: Final = "pagemesh.route.seconds"
"""What that took, from the submission on the worker."""
ROUTE_CONSIDERED: Final = "pagemesh.route.considered"
"""JSON: the candidates with their scores, the chosen one first."""
ROUTE_REFUSED: Final = "pagemesh.route.refused"
"""JSON: the filter that each other decode worker failed, by worker id."""

PREFIX_LOOKUP: Final = "pagemesh.prefix.lookup"
PREFIX_AVAILABLE: Final = "pagemesh.prefix.available"
PREFIX_CAPTURED: Final = "pagemesh.prefix.captured"
PREFIX_DELIVERED: Final = "pagemesh.prefix.delivered"

KV_READY: Final = "kv_ready"
"""Event: a prompt's first token and the KV in front of it are on its decode worker."""
