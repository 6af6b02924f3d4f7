"""What holds for packed layers of every format."""

from collections.abc import Sequence

import torch

from engine.kernels.cpu.quantized_linear import GROUP, QuantizedWeight


def by_group(numbers: torch.Tensor, depth: int) -> torch.Tensor:
    """Return one number for each of [N, depth] weights, from one for each group of them."""
    return numbers.float().repeat_interleave(GROUP, dim=1)[:, :depth]


def check_that_rows_do_not_depend_on_the_batch(
    packed: QuantizedWeight, sizes: Sequence[int]
) -> None:
    """Compare rows alone with the same rows in batches of these sizes, by 1 to 3 threads."""
    rows = torch.randn(31, packed.shape[1], generator=torch.Generator().manual_seed(1))
    alone = [packed.linear(rows[i : i + 1])[0] for i in range(len(rows))]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for size in sizes:
                together = packed.linear(rows[:size])
                for row in range(size):
                    assert torch.equal(together[row], alone[row]), (count, size, row)
    finally:
        torch.set_num_threads(threads)


def check_that_rows_show_what_is_not_finite(packed: QuantizedWeight, special: float) -> None:
    """Compare rows beside one that has such an activation with the same without it."""
    x = torch.randn(5, packed.shape[1], generator=torch.Generator().manual_seed(2))
    clean = packed.linear(x)
    x[2, 50] = special
    output = packed.linear(x)
    assert torch.isnan(output[2]).all()
    assert torch.equal(output[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
