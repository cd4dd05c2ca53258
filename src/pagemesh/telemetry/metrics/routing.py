"""What the router decides, what it knew, and what became of it; and where requests went that lost their worker."""

from __future__ import annotations

from typing import Final

from pagemesh.telemetry.metrics import buckets
from pagemesh.telemetry.metrics.labels import (
    LOOKUP,
    MODEL,
    MODEL_NAME,
    PATH,
    PATHS,
    POLICY,
    ROLE,
)
from pagemesh.telemetry.metrics.specs import (
    CounterSpec,
    GaugeSpec,
    HistogramSpec,
    Label,
    Process,
    Unit,
)

_ROUTER: Final = (Process.ROUTER,)

ROUTING_DECISIONS: Final = CounterSpec(
    name="pagemesh:routing_decisions",
    help="Decisions where to run a request, by policy and by what the chosen way's caches hold of its prompt: most "
    "(as much as any worker), less (another worker holds more), none (no worker is known to hold any), or nobody "
    "(no worker can take it).",
    unit=Unit.REQUESTS,
    labels=(MODEL_NAME, POLICY, Label("outcome", ("most", "less", "none", "nobody"))),
    processes=_ROUTER,
    look_at="less: those who hold prompts are too busy. nobody: pagemesh:workers",
)
ROUTING_SECONDS: Final = HistogramSpec(
    name="pagemesh:routing_seconds",
    help="Time that the router computed for one decision, without asking the index.",
    unit=Unit.SECONDS,
    buckets=buckets.LOOKUP,
    processes=_ROUTER,
    look_at="the number of workers; another router shares the work",
)
LOOKUP_SECONDS: Final = HistogramSpec(
    name="pagemesh:lookup_seconds",
    help="Time until the kvstore said who holds a prompt, or until that was given up: answered or failed.",
    unit=Unit.SECONDS,
    buckets=buckets.RPC,
    labels=(Label("outcome", ("answered", "failed")),),
    processes=_ROUTER,
    look_at="pagemesh:index_lookup_seconds is the kvstore's own part of it; the rest is the network and a busy process",
)
ROUTING_WITHOUT_INDEX: Final = CounterSpec(
    name="pagemesh:routing_without_index",
    help="Requests routed by load alone because the kvstore refused to answer, or gave none in time.",
    unit=Unit.REQUESTS,
    processes=_ROUTER,
    look_at="whether the kvstore runs; then pagemesh:lookup_seconds beside --lookup-timeout",
)
KV_PATH_PLANS: Final = CounterSpec(
    name="pagemesh:kv_path_plans",
    help="Prompts by how the router planned to come by their KV: local (computed on the decode worker), remote "
    "(on a prefill worker), pull (out of another worker's cache, the rest computed on the decode worker) or "
    "remote_pull (likewise, on a prefill worker).",
    unit=Unit.REQUESTS,
    labels=(PATH,),
    processes=_ROUTER,
    look_at="pagemesh:kv_path_seconds of each path: whether the planned one is the fastest",
)
KV_PATH_OVERRULED: Final = CounterSpec(
    name="pagemesh:kv_path_overruled",
    help="Prompts whose KV came another way than planned: a worker failed, or the decode worker knew better.",
    unit=Unit.REQUESTS,
    labels=(Label("planned", PATHS), PATH),
    processes=_ROUTER,
    look_at="pagemesh:remote_prefills of the decode workers, which tells failures from better knowledge",
)
KV_PATH_PREDICTED_SECONDS: Final = HistogramSpec(
    name="pagemesh:kv_path_predicted_seconds",
    help="What was predicted for the planned way, until the decode worker can go on by itself.",
    unit=Unit.SECONDS,
    buckets=buckets.TTFT,
    labels=(PATH,),
    processes=_ROUTER,
    look_at="pagemesh:pending_prefill_tokens and the measured rates of the workers",
)
KV_PATH_SECONDS: Final = HistogramSpec(
    name="pagemesh:kv_path_seconds",
    help="From submission until the decode worker could go on by itself, by the way that was taken.",
    unit=Unit.SECONDS,
    buckets=buckets.TTFT,
    labels=(PATH,),
    processes=_ROUTER,
    look_at="pagemesh:kv_path_predicted_seconds beside it: when they differ, rates have just changed",
)
KV_PATH_REGRET_SECONDS: Final = HistogramSpec(
    name="pagemesh:kv_path_regret_seconds",
    help="By how much later that was than the best other way had promised; 0 when it was not.",
    unit=Unit.SECONDS,
    buckets=buckets.TTFT,
    processes=_ROUTER,
    look_at="predictions beside what came of them, path by path; links that were hardly measured yet",
)
PREFIX_TOKENS_QUERIED: Final = CounterSpec(
    name="pagemesh:prefix_tokens_queried",
    help="Tokens of prompts that a prefix cache could serve, by what the index said of them before they were routed: "
    "answered, failed (refused, or no answer in time) or skipped (nothing to ask for, or no need to know), and by "
    "the way on which their KV came.",
    unit=Unit.TOKENS,
    labels=(*MODEL, PATH, LOOKUP),
    processes=_ROUTER,
    look_at="lookup=failed: pagemesh:routing_without_index",
)
PREFIX_TOKENS_DELIVERED: Final = CounterSpec(
    name="pagemesh:prefix_tokens_delivered",
    help="Of these, those whose KV came out of a prefix cache: nobody computed it for the request.",
    unit=Unit.TOKENS,
    labels=(*MODEL, PATH, LOOKUP),
    processes=_ROUTER,
    look_at="nothing: high is good. When it is below what was captured, the index was wrong or KV did not arrive",
)
PREFIX_TOKENS_AVAILABLE: Final = CounterSpec(
    name="pagemesh:prefix_tokens_available",
    help="Of the queried tokens whose lookup was answered, those that the cache of any one worker was known to hold.",
    unit=Unit.TOKENS,
    labels=(*MODEL, PATH),
    processes=_ROUTER,
    look_at="nothing: high is good. When it is low, prompts have little in common, or caches are too small",
)
PREFIX_TOKENS_CAPTURED: Final = CounterSpec(
    name="pagemesh:prefix_tokens_captured",
    help="Of these, those that the cache of a worker on the planned way was known to hold.",
    unit=Unit.TOKENS,
    labels=(*MODEL, PATH),
    processes=_ROUTER,
    look_at="nothing: high is good. When it is below what was available, load kept requests from where prompts lie",
)
POISON_REQUESTS: Final = CounterSpec(
    name="pagemesh:poison_requests",
    help="Requests of which workers died one after the other: ended because of that, or refused because an equal one "
    "was.",
    unit=Unit.REQUESTS,
    labels=(Label("event", ("ended", "refused")),),
    processes=_ROUTER,
    look_at="the router's log, poison request, and why those workers died, in their logs; a fault to be reported",
)
REQUESTS_RESUBMITTED: Final = CounterSpec(
    name="pagemesh:requests_resubmitted",
    help="Requests that went on with another worker, because theirs was lost or is about to stop (drain).",
    unit=Unit.REQUESTS,
    labels=(Label("reason", ("lost", "drain")),),
    processes=_ROUTER,
    look_at="lost: why workers die, in their logs and restarts. drain: a rolling update, or an autoscaler",
)
ARITHMETIC_CHANGES: Final = CounterSpec(
    name="pagemesh:arithmetic_changes",
    help="Of these, requests that had tokens and go on with a worker of another class of arithmetic, because none of "
    "theirs could take them: from there on their tokens may be others than without that.",
    unit=Unit.REQUESTS,
    labels=(Label("reason", ("lost", "drain")),),
    processes=_ROUTER,
    look_at="`pagemesh doctor`, which names the classes of each model's workers: two of each let requests keep theirs",
)
MIGRATION_PAUSE: Final = HistogramSpec(
    name="pagemesh:migration_pause_seconds",
    help="From the loss of a request's worker until another one goes on with it.",
    unit=Unit.SECONDS,
    buckets=buckets.TTFT,
    processes=_ROUTER,
    look_at="whether there are other decode workers with room, and how long the prompts are",
)
WORKERS: Final = GaugeSpec(
    name="pagemesh:workers",
    help="Workers of the model that the router can reach.",
    unit=Unit.WORKERS,
    labels=(*MODEL, ROLE),
    processes=_ROUTER,
    look_at="nothing: when it is lower than what was deployed, `pagemesh doctor`",
)
WORKERS_DEGRADED: Final = GaugeSpec(
    name="pagemesh:workers_degraded",
    help="Workers of the model that get no credit for what they hold, because they hash KV blocks otherwise than "
    "the router, by the step that differs: template, tokenizer, hashing, or unknown.",
    unit=Unit.WORKERS,
    labels=(*MODEL, ROLE, Label("reason", ("template", "tokenizer", "hashing", "unknown"))),
    processes=_ROUTER,
    look_at="`pagemesh doctor`, which says what to do for each reason",
)
