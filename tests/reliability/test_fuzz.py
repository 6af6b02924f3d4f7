"""The targets of the fuzzer on some bytes that are the same in every run (R18)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reliability.fuzz.__main__ import TARGETS, target


@pytest.mark.filterwarnings("ignore")  # of libraries, about models that mean nothing
@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_parser_or_a_loader(name):
    check = target(name)
    num_examples = 25 if name in ("gguf", "safetensors") else 100

    @settings(max_examples=num_examples, deadline=None, derandomize=True, database=None)
    @given(st.binary(min_size=16, max_size=128))
    def run(data: bytes) -> None:
        check(data)

    run()
