"""Which tokens would complete a forbidden sequence. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BadWords:
    """Forbidden sequences of one request against the end of its output; the prompt does not count.

    A step looks only at sequences that continue the very last token.
    """

    def __init__(self, words: Iterable[Sequence[int]], output_token_ids: Sequence[int]) -> None:
        sequences = [tuple(word) for word in words]
        self._always = tuple(dict.fromkeys(word[0] for word in sequences if len(word) == 1))
        self._by_last: dict[int, list[tuple[int, ...]]] = {}
        for word in sequences:
            if len(word) > 1:
                self._by_last.setdefault(word[-2], []).append(word)
        self._num_kept = max(map(len, sequences), default=1) - 1
        self._tail: tuple[int, ...] = ()
        for token_id in output_token_ids[max(0, len(output_token_ids) - self._num_kept) :]:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Note the output's next token."""
        if self._num_kept:
            self._tail = (*self._tail, token_id)[-self._num_kept :]

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Tokens that would complete a sequence now."""
        candidates = self._by_last.get(self._tail[-1], ()) if self._tail else ()
        completing = [
            word[-1] for word in candidates if self._tail[-(len(word) - 1) :] == word[:-1]
        ]
        return (*self._always, *completing)
