import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.codecs import BFloat16, Float16, Identity


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-65000, 65000, width=32), max_size=40))
def test_within_the_stated_bound(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    assert torch.equal(Identity().decode(Identity().encode(x), x.shape), x)
    for codec, relative, absolute in ((Float16(), 2.0**-11, 2.0**-25), (BFloat16(), 2.0**-8, 2.0**-134)):
        error = (codec.decode(codec.encode(x), x.shape).double() - x.double()).abs()
        assert bool((error <= torch.clamp(x.double().abs() * relative, min=absolute)).all())


def test_they_are_torchs_own_roundings() -> None:
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Float16().decode(Float16().encode(x), x.shape), x.half().float())
    assert torch.equal(BFloat16().decode(BFloat16().encode(x), x.shape), x.bfloat16().float())
