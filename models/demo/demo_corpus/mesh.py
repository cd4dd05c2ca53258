"""The parts of a mesh and the words of LLM serving, each explained in our own words."""

from random import Random
from typing import NamedTuple

from demo_corpus.exchange import Exchange, sentence_case


class Term(NamedTuple):
    """A word that is explained, and the other names it goes by."""

    name: str  # as it stands in "What is ...?", with its article
    explanation: str
    aliases: tuple[str, ...] = ()


_PARTS = (
    Term(
        "the gateway",
        "The gateway is the HTTP server of the mesh. It is Envoy: it checks keys and limits and "
        "passes each request to a router over gRPC.",
        ("Envoy", "the Envoy gateway"),
    ),
    Term(
        "the router",
        "The router turns text into tokens and back, and chooses the workers for each request. It "
        "prefers the worker that already holds the prefix.",
        ("a router",),
    ),
    Term(
        "the prefill worker",
        "The prefill worker reads the prompt and computes its KV cache. It samples the first token "
        "and streams the KV cache to the decode worker.",
        ("a prefill worker",),
    ),
    Term(
        "the decode worker",
        "The decode worker writes the answer one token at a time. It keeps the KV cache of its "
        "requests in blocks and runs them together in one batch.",
        ("a decode worker",),
    ),
    Term(
        "the kvstore",
        "The kvstore knows which worker holds which block. The router asks it where the longest "
        "prefix of a prompt is cached.",
        ("a kvstore", "the kv store"),
    ),
    Term(
        "a worker",
        "A worker is a process that runs the model. A prefill worker reads prompts and a decode "
        "worker writes answers.",
    ),
)
_TERMS = (
    Term(
        "the KV cache",
        "The KV cache keeps the keys and values of all tokens read so far, so that the model does "
        "not compute them again for each new token.",
        ("KV cache", "a KV cache"),
    ),
    Term(
        "a block",
        "A block is a small piece of the KV cache, 16 tokens long by default. Its name is a hash "
        "of its tokens and of everything before them.",
        ("a KV block",),
    ),
    Term(
        "a block table",
        "A block table lists, for one request, which blocks of memory hold its KV cache.",
    ),
    Term(
        "the prefix cache",
        "The prefix cache keeps the blocks of earlier prompts. A new prompt that begins with the "
        "same tokens can use them and skip that work.",
        ("prefix caching", "a prefix cache"),
    ),
    Term(
        "prefill",
        "Prefill is the first phase of a request: the model reads the whole prompt and fills the "
        "KV cache.",
        ("the prefill phase",),
    ),
    Term(
        "decode",
        "Decode is the second phase of a request: the model writes the answer, one token at a "
        "time.",
        ("decoding", "the decode phase"),
    ),
    Term(
        "chunked prefill",
        "Chunked prefill cuts a long prompt into pieces, so that the requests which are already "
        "decoding do not have to wait for it.",
    ),
    Term(
        "continuous batching",
        "Continuous batching lets requests join and leave the running batch at every step, so that "
        "nobody waits for the slowest one.",
    ),
    Term(
        "paged attention",
        "Paged attention stores the KV cache in small blocks that can lie anywhere in memory, like "
        "the pages of an operating system.",
        ("PagedAttention",),
    ),
    Term(
        "TTFT",
        "TTFT is the time to first token: how long a client waits until the answer begins.",
        ("time to first token", "the time to first token"),
    ),
    Term(
        "ITL",
        "ITL is the inter-token latency: the time between two tokens of an answer.",
        ("inter-token latency", "the inter-token latency"),
    ),
    Term(
        "goodput",
        "Goodput is the number of requests per second that meet their latency targets.",
    ),
    Term(
        "preemption",
        "Preemption takes the blocks of a running request away when memory is short. The request "
        "waits and continues later with the same tokens.",
    ),
    Term(
        "disaggregation",
        "Disaggregation runs prefill and decode on different workers, so that long prompts do not "
        "slow down running answers.",
        ("disaggregated serving", "disaggregated prefill"),
    ),
    Term(
        "a token",
        "A token is a small piece of text, such as a word or a part of a word. A language model "
        "reads and writes tokens.",
        ("token",),
    ),
    Term(
        "a tokenizer",
        "A tokenizer cuts text into tokens and gives each token a number.",
        ("the tokenizer",),
    ),
    Term(
        "a prompt",
        "A prompt is the text that a language model is given before it answers.",
        ("the prompt",),
    ),
    Term(
        "a language model",
        "A language model is a program that predicts the next token of a text again and again.",
        ("an LLM", "a large language model"),
    ),
    Term(
        "gRPC",
        "gRPC is a protocol for calling functions of another process. All parts of pagemesh use it "
        "to talk to each other.",
    ),
    Term(
        "a lease",
        "In pagemesh the stream is the lease: a block belongs to an open stream or a running "
        "request, and when that ends the block is free.",
        ("the lease",),
    ),
    Term(
        "an epoch",
        "An epoch numbers the lives of a worker. Events of an old epoch are refused.",
        ("the epoch of a worker",),
    ),
    Term(
        "speculative decoding",
        "Speculative decoding lets a small draft model guess several tokens, which the large model "
        "then checks in one step.",
    ),
    Term(
        "a draft model",
        "A draft model is a small model that guesses tokens for a larger model to check.",
        ("the draft model",),
    ),
    Term(
        "attention",
        "Attention lets each token look at the tokens before it and take what it needs from them.",
    ),
    Term(
        "a chat template",
        "A chat template turns the messages of a conversation into one text that the model can "
        "read.",
        ("the chat template",),
    ),
    Term(
        "the token budget",
        "The token budget is the largest number of tokens that the engine processes in one step.",
        ("a token budget",),
    ),
    Term(
        "greedy decoding",
        "Greedy decoding always takes the most likely token, so the same prompt always gives the "
        "same answer.",
    ),
    Term(
        "the temperature",
        "The temperature says how random the choice of the next token is. With a temperature of 0 "
        "the most likely token always wins.",
        ("temperature",),
    ),
    Term(
        "streaming",
        "Streaming sends each token to the client as soon as it is made.",
    ),
    Term(
        "backpressure",
        "Backpressure makes a fast sender wait for a slow reader, so that memory does not fill up.",
    ),
    Term(
        "draining",
        "Draining means that a worker finishes its running requests and takes no new ones before "
        "it stops.",
        ("a drain",),
    ),
)
_ASK_TERM = (
    "What is {}?",
    "What is {}?",
    "What's {}?",
    "Explain {}.",
    "Explain {} to me.",
    "What does {} mean?",
    "Can you explain {}?",
    "Please explain {}.",
    "Tell me about {}.",
    "Describe {}.",
    "Define {}.",
    "{}?",
    "What do you know about {}?",
    "How does {} work?",
    "In simple words, what is {}?",
)
_ASK_PART = (
    *_ASK_TERM,
    "What does {} do?",
    "What does {} do?",
    "What does {} do in pagemesh?",
    "What is {} for?",
    "What is the job of {}?",
    "What is {} in pagemesh?",
    "Why does a mesh need {}?",
)
_WHICH = (
    ("knows which worker holds which block", "the kvstore"),
    ("remembers where blocks are cached", "the kvstore"),
    ("reads the prompt", "the prefill worker"),
    ("computes the KV cache of the prompt", "the prefill worker"),
    ("writes the answer", "the decode worker"),
    ("generates the tokens of the answer", "the decode worker"),
    ("chooses the workers for a request", "the router"),
    ("turns text into tokens", "the router"),
    ("renders the chat template", "the router"),
    ("speaks HTTP with clients", "the gateway"),
    ("checks API keys", "the gateway"),
    ("limits the rate of requests", "the gateway"),
)
_ASK_WHICH = (
    "Which part of a mesh {}?",
    "Which part of pagemesh {}?",
    "Which part {}?",
    "What part of the mesh {}?",
    "Which service {}?",
)
_EXPANSIONS = (
    ("TTFT", "time to first token"),
    ("ITL", "inter-token latency"),
    ("KV", "key and value"),
    ("LLM", "large language model"),
    ("RPC", "remote procedure call"),
    ("GPU", "graphics processing unit"),
    ("CPU", "central processing unit"),
    ("API", "application programming interface"),
    ("BPE", "byte pair encoding"),
)


def _explain(rng: Random, terms: tuple[Term, ...], templates: tuple[str, ...]) -> Exchange:
    term = rng.choice(terms)
    name = rng.choice((term.name, *term.aliases)) if rng.random() < 0.5 else term.name
    return Exchange(sentence_case(rng.choice(templates).format(name)), term.explanation)


def part(rng: Random) -> Exchange:
    """What a part of a mesh is and does."""
    return _explain(rng, _PARTS, _ASK_PART)


def term(rng: Random) -> Exchange:
    """What a word of LLM serving means."""
    return _explain(rng, _TERMS, _ASK_TERM)


def which_part(rng: Random) -> Exchange:
    """From the job to the part that does it."""
    does, name = rng.choice(_WHICH)
    return Exchange(
        rng.choice(_ASK_WHICH).format(does), f"{sentence_case(name)} {does}.", sentence_case(name)
    )


def abbreviation(rng: Random) -> Exchange:
    """What the letters of an abbreviation stand for."""
    short, long = rng.choice(_EXPANSIONS)
    question = rng.choice(
        ("What does {} stand for?", "What is {} short for?", "Expand the abbreviation {}.")
    ).format(short)
    return Exchange(question, f"{short} stands for {long}.")


def statement(rng: Random) -> str:
    """One explanation on its own, for the completions route."""
    return rng.choice(_PARTS + _TERMS).explanation
