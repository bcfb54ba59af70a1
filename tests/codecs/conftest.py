"""What tests of kernels change for a while: the instruction set and the number of threads."""

from collections.abc import Iterator

import pytest
import torch

from tests.codecs.every import module


@pytest.fixture(params=["portable", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    chosen: str = request.param
    if not module().set_isa(chosen):
        pytest.skip(f"this processor has no {chosen}")
    yield chosen
    module().set_isa("best")


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
