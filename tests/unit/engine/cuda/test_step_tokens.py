from __future__ import annotations

import torch

from pagemesh.engine.cuda.steps import LastTokens


def test_unknown_tokens_are_those_that_were_sampled_at_their_place_in_the_batch() -> None:
    last = LastTokens(max_num_seqs=8, device=torch.device("cpu"))
    # The batch's first sequence was computed last.
    last.keep(torch.tensor([70, 71, 72]), places=[2, 0, 1])
    rows = last.rows(5, unknown=[0, 3], previous=[0, 2])
    assert rows.tolist() == [2, -1, -1, 1, -1]
    token_ids = last.fill(torch.tensor([-1, 11, 12, -1, 14]), torch.from_numpy(rows))
    assert token_ids.tolist() == [72, 11, 12, 71, 14]


def test_fewer_tokens_leave_those_behind_them_alone() -> None:
    last = LastTokens(max_num_seqs=4, device=torch.device("cpu"))
    last.keep(torch.tensor([1, 2, 3, 4]), places=[0, 1, 2, 3])
    last.keep(torch.tensor([9]), places=[0])
    rows = last.rows(1, unknown=[0], previous=[0])
    assert last.fill(torch.tensor([-1]), torch.from_numpy(rows)).tolist() == [9]
