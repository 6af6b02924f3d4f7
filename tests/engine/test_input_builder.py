"""The tensors of a step, token by token."""

import numpy as np
import torch

from engine.batch import ScheduledBatch, ScheduledRequest
from engine.input_builder import InputBuilder
from tests.engine.builders import make_request

PAGE = 4


def scheduled(name, prompt, blocks, first, count, generated=()):
    request = make_request(name, prompt)
    request.generated_tokens.extend(generated)
    request.block_ids.extend(blocks)
    request.num_computed = first
    return ScheduledRequest(request, count, first + count == request.num_tokens)


def build(*items):
    batch = ScheduledBatch(list(items), sum(item.num_new_tokens for item in items))
    return InputBuilder(PAGE, torch.device("cpu")).build(batch)


def test_a_prompt_is_laid_out_over_its_blocks():
    inputs = build(scheduled("a", [10, 11, 12, 13, 14, 15], [7, 2], 0, 6))
    assert inputs.input_ids.tolist() == [[10, 11, 12, 13, 14, 15]]
    assert inputs.position_ids.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert inputs.slots.tolist() == [28, 29, 30, 31, 8, 9]
    assert inputs.block_table.tolist() == [[7, 2]]
    assert (inputs.query_starts, inputs.context_lengths) == ([0, 6], [6])
    assert inputs.sample_indices.tolist() == [5]


def test_a_decoding_row_is_its_last_token():
    inputs = build(scheduled("a", [10, 11, 12, 13], [7, 2], 5, 1, generated=[20, 21]))
    assert inputs.input_ids.tolist() == [[21]]
    assert inputs.position_ids.tolist() == [[5]]
    assert inputs.slots.tolist() == [9]
    assert inputs.context_lengths == [6]


def test_a_chunk_that_does_not_reach_the_end_samples_nothing():
    inputs = build(scheduled("a", list(range(10)), [0, 1, 2], 3, 4))
    assert inputs.input_ids.tolist() == [[3, 4, 5, 6]]
    assert inputs.slots.tolist() == [3, 4, 5, 6]
    assert inputs.context_lengths == [7]
    assert inputs.sample_indices.tolist() == []


def test_a_chunk_of_one_prompt_token_is_like_a_longer_one():
    inputs = build(scheduled("a", list(range(10, 20)), [5, 1, 2], 4, 1))
    assert (inputs.input_ids.tolist(), inputs.slots.tolist()) == ([[14]], [4])
    assert inputs.sample_indices.tolist() == []


def test_guesses_stand_behind_the_token_they_follow():
    plain = scheduled("a", [1, 2, 3], [4], 2, 1)
    drafted = scheduled("b", [10, 11, 12, 13], [7, 2], 5, 1, generated=[20, 21])
    drafted.draft = [30, 31]
    prompt = scheduled("c", [5, 6], [1], 0, 2)
    prompt.request.prompt_logprobs = [None]
    items = [plain, drafted, prompt]
    batch = ScheduledBatch(items, 4, num_drafted=2)
    inputs = InputBuilder(PAGE, torch.device("cpu"), table_width=9).build(batch)
    assert inputs.input_ids.tolist() == [[3, 21, 30, 31, 5, 6]]
    assert inputs.position_ids.tolist() == [[2, 5, 6, 7, 0, 1]]
    assert inputs.slots.tolist() == [18, 9, 10, 11, 4, 5]
    assert (inputs.query_starts, inputs.context_lengths) == ([0, 1, 4, 6], [3, 8, 2])
    # The last known token of each request, then the prompt's, then the guesses.
    assert inputs.sample_indices.tolist() == [0, 1, 5, 4, 2, 3]


def test_a_batch_with_guesses_has_no_table_of_the_decode_path():
    item = scheduled("a", [1, 2, 3], [4], 2, 1)
    builder = InputBuilder(PAGE, torch.device("cpu"), table_width=9)
    assert builder.build(ScheduledBatch([item], 1)).block_table.shape == (1, 9)
    item.draft = [5]
    assert builder.build(ScheduledBatch([item], 1, num_drafted=1)).block_table.shape == (1, 1)


def test_a_recomputed_chunk_crosses_from_prompt_to_answer():
    inputs = build(scheduled("a", [10, 11, 12], [3, 6], 1, 4, generated=[20, 21]))
    assert inputs.input_ids.tolist() == [[11, 12, 20, 21]]
    assert inputs.slots.tolist() == [13, 14, 15, 24]


def test_rows_stand_side_by_side_in_batch_order():
    inputs = build(
        scheduled("a", [1, 2, 3, 5], [4], 3, 1),
        scheduled("b", [6, 7, 8], [1, 3, 5], 0, 2),
        scheduled("c", [9], [0], 0, 1),
    )
    assert inputs.input_ids.tolist() == [[5, 6, 7, 9]]
    assert inputs.query_starts == [0, 1, 3, 4]
    assert inputs.context_lengths == [4, 2, 1]
    assert inputs.sample_indices.tolist() == [0, 3]
    assert inputs.block_table.tolist() == [[4, 0, 0], [1, 3, 5], [0, 0, 0]]


def test_the_tensors_have_the_documented_types():
    inputs = build(scheduled("a", [1], [0], 0, 1))
    for tensor in (inputs.input_ids, inputs.position_ids, inputs.slots, inputs.sample_indices):
        assert tensor.dtype == torch.int64
    assert inputs.block_table.dtype == torch.int32
    assert np.array_equal(inputs.query_starts, [0, 1])


def test_batches_of_decoding_rows_have_a_table_of_one_width():
    builder = InputBuilder(PAGE, torch.device("cpu"), table_width=3)

    def width(*items):
        batch = ScheduledBatch(list(items), sum(item.num_new_tokens for item in items))
        return builder.build(batch).block_table.shape[1]

    row = scheduled("a", [10, 11], [7], 1, 1)
    assert width(row) == 3
    assert width(row, scheduled("b", list(range(20)), [1, 2, 3, 4, 5], 19, 1)) == 5
    assert width(row, scheduled("c", [10, 11, 12], [2], 0, 3)) == 1
