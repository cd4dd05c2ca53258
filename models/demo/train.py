#!/usr/bin/env python3
"""Trains the demo model from nothing on two CPU cores; the model card says how long that took.

The text comes from `demo_corpus`, the same for the same seed. Most steps read short rows; every
eighth reads a row as long as the context, so that answers stay right after a long conversation.
At the end the weights are rounded to bfloat16 and written, loaded back, and asked the questions
of `questions.jsonl`: the score printed is that of the files on disk.

    python models/demo/train.py --out /tmp/demo
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: idle threads must not spin

import torch
from architecture import demo_config, demo_generation_config, new_model
from demo_corpus import Corpus
from evaluate import Asker, judge, load_questions, print_report
from packing import Packer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from vocabulary import CONTEXT_LENGTH, load_or_train_tokenizer, save_tokenizer

HERE = Path(__file__).resolve().parent
TOKENS_PER_STEP = 2048
SHORT_ROW = 512  # most steps: attention over short rows is cheap
LONG_EVERY = 8  # every eighth step reads one row as long as the context


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the model's files")
    parser.add_argument("--steps", type=int, default=3000, help="optimizer steps (default: 3000)")
    parser.add_argument("--matrix-lr", type=float, default=5e-3, help="peak rate of Muon")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak rate of AdamW")
    parser.add_argument("--seed", type=int, default=1, help="seed of text and weights (default: 1)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument(
        "--start", type=Path, help="folder of weights to go on from (default: fresh ones)"
    )
    parser.add_argument(
        "--mean",
        action="store_true",
        help="with --start: write the mean of the weights in front of training and behind it",
    )
    parser.add_argument(
        "--new-tokenizer",
        action="store_true",
        help="learn the merges again instead of keeping the committed ones",
    )
    arguments = parser.parse_args()
    if arguments.mean and not arguments.start:
        parser.error("--mean needs --start")
    return arguments


def make_optimizers(
    model: LlamaForCausalLM, matrix_lr: float, lr: float
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    layers = list(model.model.layers.parameters())
    matrices = [p for p in layers if p.ndim == 2]
    others = [p for p in layers if p.ndim != 2]
    others += [*model.model.embed_tokens.parameters(), *model.model.norm.parameters()]
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    if not matrix_lr:
        adam.add_param_group({"params": matrices, "weight_decay": 0.05})
        return [adam]
    muon = torch.optim.Muon(
        matrices, lr=matrix_lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adam]


def rate_factor(step: int, steps: int) -> float:
    """Warm up over 3 %, hold, then fall in a line to zero over the last 70 %."""
    warm = min(1.0, (step + 1) / max(1.0, 0.03 * steps))
    return warm * min(1.0, (steps - step) / (0.7 * steps))


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the learned places; only these go through the output matrix."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, H]
        places = labels != -100
        logits = model.lm_head(hidden[places])  # [N, V]
    return torch.nn.functional.cross_entropy(logits.float(), labels[places])


def train(model: LlamaForCausalLM, packer: Packer, arguments: argparse.Namespace) -> None:
    """The loop: one batch, one step, mostly short rows and now and then a long one."""
    optimizers = make_optimizers(model, arguments.matrix_lr, arguments.lr)
    peaks = [[group["lr"] for group in o.param_groups] for o in optimizers]
    short_rows = packer.batches(SHORT_ROW, TOKENS_PER_STEP)
    long_rows = packer.batches(CONTEXT_LENGTH, TOKENS_PER_STEP)
    started, running = time.perf_counter(), 0.0
    model.train()
    for step in range(arguments.steps):
        # Long rows from the start: changing the length late throws the loss back.
        batches = long_rows if step % LONG_EVERY == LONG_EVERY - 1 else short_rows
        factor = rate_factor(step, arguments.steps)
        loss = loss_of(model, *next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rates in zip(optimizers, peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad()
        running += (loss.item() - running) / min(step + 1, 50)
        if step % 50 == 49:
            spent = time.perf_counter() - started
            print(f"step {step + 1:5d}  loss {running:.4f}  {spent:6.0f} s", flush=True)


def take_mean(model: LlamaForCausalLM, folder: Path) -> None:
    """The mean of two points of training answers better than both (Wortsman et al. 2022, WiSE-FT)."""
    others = LlamaForCausalLM.from_pretrained(folder).state_dict()
    # Of the weights as they would be written. Those of embedding and output are the same.
    model.bfloat16()
    model.float()  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        weight.data.copy_((weight.data + others[name]) / 2)


def write_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes every file that loading needs, weights rounded to bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    model.config.dtype = "float32"
    model.config.use_cache = True
    model.config.save_pretrained(folder)
    demo_generation_config().save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def main() -> int:
    """Tokenizer, training, files, questions."""
    arguments = parse_arguments()
    started = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    questions = load_questions(HERE / "questions.jsonl")
    held_out = frozenset(q.normalised for q in questions if q.held_out)
    tokenizer = load_or_train_tokenizer(HERE, arguments.seed, arguments.new_tokenizer)
    if arguments.start:
        model = LlamaForCausalLM.from_pretrained(arguments.start)
    else:
        model = new_model(demo_config(), arguments.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    train(model, Packer(Corpus(arguments.seed, held_out), tokenizer), arguments)
    if arguments.mean:
        take_mean(model, arguments.start)
    write_model(model, tokenizer, arguments.out)
    print(f"trained in {time.perf_counter() - started:.0f} s", flush=True)
    print_report(judge(Asker(arguments.out), questions))
    print(
        f"finished after {time.perf_counter() - started:.0f} s, "
        f"{time.process_time():.0f} s of processor time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
