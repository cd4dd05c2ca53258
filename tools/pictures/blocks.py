"""Two real prompts of the demo model, cut into blocks and hashed; what the second finds of the first."""

from __future__ import annotations

from typing import Final

from tokenizers import Tokenizer

from pagemesh.cache.block_hash import hash_blocks, root_hash
from pagemesh.cache.block_pool import BlockPool
from tools.docsite.pages import ROOT
from tools.pictures.svg import Drawing

BLOCK_SIZE: Final = 4
_SYSTEM: Final = "You are a helpful assistant. Answer with one word only."
QUESTIONS: Final = ("What is the capital of France?", "Who are you?")
_CELL, _LEFT = 156, 76


def prompts() -> list[list[int]]:
    """The token ids of both."""
    tokenizer = Tokenizer.from_file(str(ROOT / "models/demo/tokenizer.json"))
    return [tokenizer.encode(f"{_SYSTEM} {question}").ids for question in QUESTIONS]


def hashes_of(token_ids: list[int]) -> list[bytes]:
    """The hashes of the full blocks, as engine, router and kvstore know them."""
    return hash_blocks(root_hash("demo", BLOCK_SIZE, "float32"), token_ids, BLOCK_SIZE)


def num_shared() -> int:
    """Blocks of the second prompt that a real pool finds when the first is cached."""
    first, second = map(hashes_of, prompts())
    pool = BlockPool(16)
    for block, block_hash in zip(pool.allocate(len(first)), first, strict=True):
        pool.store(block, block_hash)
    return len(pool.longest_cached_prefix(second))


def draw() -> str:
    """The picture."""
    tokenizer = Tokenizer.from_file(str(ROOT / "models/demo/tokenizer.json"))
    drawing = Drawing(
        1040, 430, "Two prompts as chains of hashed blocks; the second finds the first's"
    )
    shared = num_shared()
    for row, ids in enumerate(prompts()):
        top = 40 + 200 * row
        drawing.words(16, top, f"Prompt {row + 1}", bold=True, size=15)
        hashes = hashes_of(ids)
        pieces = [ids[i : i + BLOCK_SIZE] for i in range(0, len(ids), BLOCK_SIZE)]
        drawing.box(16, top + 74, 44, 40, "plain", dashed=True)
        drawing.words(38, top + 99, "root", anchor="middle", size=12)
        for number, piece in enumerate(pieces):
            _draw_block(drawing, tokenizer, row, number, piece, hashes, top, shared)
    drawing.words(
        16, 418, f"A block is {BLOCK_SIZE} tokens here, 16 by default. Green: found in the cache, not computed. "
        "A part of a block has no hash.", size=12.5, colour="soft",
    )  # fmt: skip
    return drawing.text()


def _draw_block(
    drawing: Drawing, tokenizer: Tokenizer, row: int, number: int, ids: list[int],
    hashes: list[bytes], top: float, shared: int,
) -> None:  # fmt: skip
    x = _LEFT + 14 + number * _CELL
    width = _CELL - 12
    full = number < len(hashes)
    found = row == 1 and number < shared
    drawing.box(
        x, top + 14, width, 50, "green" if found else ("blue" if full else "plain"), dashed=not full
    )
    text = tokenizer.decode(ids, skip_special_tokens=False)
    middle = text.rfind(" ", 0, len(text) // 2 + 3)
    for line, part in enumerate((text[:middle].strip(), text[middle:].strip())):
        drawing.words(x + width / 2, top + 35 + 17 * line, part, anchor="middle", size=12)
    if not full:
        return
    drawing.box(x, top + 74, width, 40, "green" if found else "plain")
    drawing.words(
        x + width / 2,
        top + 99,
        hashes[number].hex()[:12] + "…",
        anchor="middle",
        size=12,
        mono=True,
    )
    drawing.line((x + width / 2, top + 64), (x + width / 2, top + 74))
    drawing.line((x - (30 if number == 0 else 12), top + 94), (x, top + 94))
    if found:
        drawing.line(
            (x + width / 2, top - 75),
            (x + width / 2, top + 12),
            dashed=True,
            colour="accent",
            arrow=False,
        )
