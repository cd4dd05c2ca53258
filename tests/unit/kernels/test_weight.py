from __future__ import annotations

import torch

from pagemesh.kernels.linear import Dense


def test_rows_come_in_the_order_asked_for() -> None:
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    taken = Dense(tensor).take_rows(torch.tensor([2, 0, 1]))
    assert taken.tensor.tolist() == [[5.0, 6.0], [1.0, 2.0], [3.0, 4.0]]
    assert tensor.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_a_matrix_of_a_stack_is_no_copy() -> None:
    stack = Dense(torch.arange(12.0, dtype=torch.bfloat16).view(3, 2, 2))
    matrix = stack.matrix(1)
    assert (matrix.shape, matrix.dtype, matrix.device) == ((2, 2), torch.bfloat16, stack.device)
    assert matrix.tensor.tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert matrix.tensor.data_ptr() == stack.tensor[1].data_ptr()
