"""The tokenizer of the demo model: byte-level BPE with single digits, and its chat format."""

import json
from itertools import islice
from pathlib import Path

from demo_corpus import Corpus, Document
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"  # closes a document; also the padding token
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"  # closes a turn; generation stops here
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID = 0, 1, 2  # the trainer numbers them in this order
VOCABULARY_SIZE = 2048
CONTEXT_LENGTH = 2048
_SAMPLE_DOCUMENTS = 40_000


def _plain(document: Document) -> str:
    return document.text or "\n".join(message["content"] for message in document.messages)


def train_tokenizer(seed: int, chat_template: str) -> PreTrainedTokenizerFast:
    """Learn the merges from a sample of the corpus. The same seed gives the same merges."""
    tokenizer = Tokenizer(models.BPE())
    # Digits stand alone, so that sums and counting are the same problem at every size.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = islice(Corpus(seed).documents(), _SAMPLE_DOCUMENTS)
    tokenizer.train_from_iterator(map(_plain, sample), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
    )


def load_or_train_tokenizer(folder: Path, seed: int, fresh: bool) -> PreTrainedTokenizerFast:
    """The committed tokenizer, so that token ids stay what they are, or a newly trained one."""
    if not fresh and (folder / "tokenizer.json").exists():
        committed: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
        return committed
    return train_tokenizer(seed, (folder / "chat_template.jinja").read_text())


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes the tokenizer's files under names that old and new releases of transformers know."""
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": CONTEXT_LENGTH,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(str(tokenizer.chat_template))
