"""What the suite runs: slices of less than nine minutes, the most telling first, 40 minutes in all.

A rented machine may give a command ten minutes, and goes back whole. So a slice stands alone, each of its
commands has a deadline of its own, and the deadlines of a slice add up to no more than the slice may take.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FIGURES: Final = "{figures}"
"""Among arguments: the file for what comes out."""

MODEL: Final = "8B"
"""The model of the engine's benchmark, which makes it unless it is there."""

MODELS: Final = ("demo", "GPT-OSS", "Gemma", "Falcon", "Qwen", "Cohere", "Mistral")
"""Of the tests of identity, by words of their names: each word is a process."""

_PYTEST: Final = (
    "-m",
    "pytest",
    "-c",
    "tests/gpu/pytest.ini",
    "--rootdir",
    ".",
    "--confcutdir",
    ".",
)
_BITS: Final = ("same_bits", "attention_bits", "cuda_accelerator", "cuda_kv", "drawn_tokens")
_PROBE_END_S: Final = 25.0
"""What a probe has for its start, and for what it is in when its own time is spent."""


class Command(NamedTuple):
    """A process of the GPU's interpreter."""

    name: str  # also of its files
    seconds: float  # after which it is stopped
    arguments: tuple[str, ...]
    figures: str = ""  # how the name of its file of figures ends; empty without one
    has_model: bool = False  # makes or reads the large model


class Slice(NamedTuple):
    """What one call on a rented machine can do."""

    number: int
    name: str
    stages: tuple[tuple[Command, ...], ...]
    """One after the other; what is in one runs side by side."""

    @property
    def folder(self) -> str:
        """Of its logs and figures."""
        return f"{self.number}-{self.name}"

    @property
    def seconds(self) -> float:
        """What it takes at most, besides the wheels."""
        return sum(max(command.seconds for command in stage) for stage in self.stages)

    @property
    def commands(self) -> tuple[Command, ...]:
        """All of them."""
        return tuple(command for stage in self.stages for command in stage)


def all_slices(*, toy: bool = False) -> tuple[Slice, ...]:
    """In the order of what they tell; `toy` plays the device, in sizes that a CPU can do."""
    return (
        Slice(
            1,
            "bits",
            (
                _tests_side_by_side(),
                (_tests("memory-tests", 65, _gpu_test("cuda_memory")),),
                (_probe("kv", 50, toy=toy),),
                (_probe("memory", 50, toy=toy, has_model=True),),
            ),
        ),
        Slice(
            2,
            "steps",
            tuple(
                (_probe(name, seconds, toy=toy),)
                for name, seconds in (
                    ("step", 130),
                    ("quantised", 70),
                    ("profile", 45),
                    ("products", 110),
                    ("attention", 95),
                    ("draw", 40),
                    ("limits", 45),
                )
            ),
        ),
        Slice(
            3,
            "engine",
            (
                (_engine("engine", 220, 8192),),
                (_engine("engine-512", 140, 512),),
                (_engine("engine-fp8", 140, 8192, "--kv-cache-dtype", "fp8"),),
            ),
        ),
        # Its paths are those of `make test-gpu`: testpaths in tests/gpu/pytest.ini.
        Slice(4, "kernels", ((_tests("kernels", 500, "-n", "8", "--dist", "loadfile", "-k", "not cpu"),),)),
        Slice(
            5,
            "others",
            (
                (_contests("contests-small", 130, "rows,sampling,blocks"),),
                (_contests("contests", 220, "products,attention"),),
                (_engine("transformers", 180, 8192, engine="transformers-continuous"),),
            ),
        ),
    )  # fmt: skip


def _tests_side_by_side() -> tuple[Command, ...]:
    """Sixteen cores and a GPU that is idle most of the time have room for all; memory is measured alone."""
    bits = [_gpu_test(name) for name in _BITS]
    identity = [_gpu_test("cuda_identity"), _gpu_test("cuda_waits")]
    arguments = ("benchmarks/random_models.py", MODEL)
    return (
        _tests("bits", 170, "-n", "5", "--dist", "load", "--maxfail", "10", *bits),
        *(
            _tests(f"identity-{word}", 170, "-k", word, "--maxfail", "4", *identity)
            for word in MODELS
        ),
        _tests("ipc", 110, _gpu_test("cuda_ipc")),
        Command("model", 150, arguments, has_model=True),
    )


def _gpu_test(name: str) -> str:
    return f"tests/gpu/test_{name}.py"


def _tests(name: str, seconds: float, *arguments: str) -> Command:
    options = ("-p", "no:cacheprovider", "-q", "--durations", "5", f"--junitxml={FIGURES}")
    return Command(name, seconds, (*_PYTEST, *options, *arguments), ".xml")


def _probe(name: str, seconds: float, *, toy: bool, has_model: bool = False) -> Command:
    own = ("--toy", "--quick") if toy else ("--seconds", f"{seconds - _PROBE_END_S:.0f}")
    arguments = ("benchmarks/gpu_probe.py", name, "--json", FIGURES, *own)
    return Command(name, seconds, arguments, ".json", has_model=has_model)


def _contests(name: str, seconds: float, entries: str) -> Command:
    # It writes "kernels_cuda" where it finds "kernels" in the name: these have none.
    arguments = ("benchmarks/kernels.py", "--quick", "--ops", entries, "--json", FIGURES)
    return Command(name, seconds, arguments, ".json")


def _engine(
    name: str, seconds: float, num_tokens: int, *options: str, engine: str = "pagemesh"
) -> Command:
    arguments = ("benchmarks/gpu_engine.py", "--quick", "--engines", engine, "--json", FIGURES)
    tokens = ("--max-num-batched-tokens", str(num_tokens))
    return Command(name, seconds, (*arguments, *tokens, *options), ".json", has_model=True)
