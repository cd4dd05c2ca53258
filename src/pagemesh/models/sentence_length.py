"""How long the texts of an encoder may be, from the files that sentence-transformers keeps beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pagemesh.models.config_json import ConfigJson

_FILES: Final = tuple(
    f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "xlm-roberta")
)
"""sentence-transformers' names for its own; it takes the first that is there."""

_TOKENIZER_FILE: Final = "tokenizer_config.json"
"""Where it keeps the length since version 6."""


def read_sentence_length(folder: Path) -> float | None:
    """Tokens of the longest text that the model was made for; None when nobody says.

    ConfigError when texts were to be changed before the tokenizer sees them.
    """
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is not None:
        config = ConfigJson.read(path)
        config.require("do_lower_case", (False,))
        if config.get("max_seq_length") is not None:
            return config.integer("max_seq_length")
    path = folder / _TOKENIZER_FILE
    if not path.is_file():
        return None
    tokenizer = ConfigJson.read(path)
    # A number beyond all bounds where the tokenizer has none.
    return (
        None if tokenizer.get("model_max_length") is None else tokenizer.number("model_max_length")
    )
