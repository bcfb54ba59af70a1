import pytest
import torch

from thinwire.bench import codec
from thinwire.codecs import Codec, Uniform, twins
from thinwire.codecs.base import Shape
from thinwire.codecs.kernels import kernels_for, native


def test_ratios_are_the_rates_own() -> None:
    threads = torch.get_num_threads()
    shares: list[float] = []
    result = codec.run(num_rows=64, num_columns=40, threads=2, on_progress=lambda share, _: shares.append(share))
    assert torch.get_num_threads() == threads
    assert shares == sorted(shares)
    assert len(result.rows) == len(codec.codecs_for(64))
    for row in result.rows:
        torch.testing.assert_close(row.encode_vs_memcpy, row.encode_gbps / row.memcpy_gbps)
        torch.testing.assert_close(row.decode_vs_memcpy, row.decode_gbps / row.memcpy_gbps)
        torch.testing.assert_close(row.encode_vs_twin, row.encode_gbps / row.encode_twin_gbps)
        assert row.encode_low <= row.encode_gbps <= row.encode_high
        assert (row.encode_vs_torch_topk is not None) == row.codec.startswith("TopK")


class _Spy(Codec):
    """Notes who was to do the work."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def nbytes(self, shape: Shape) -> int:
        return Uniform(8).nbytes(shape)

    def _note(self, what: str, x: torch.Tensor) -> None:
        self.seen.append(f"{what} {'twin' if kernels_for(x) is twins else 'native'}")

    def _encode(self, x: torch.Tensor, seed: int, out: torch.Tensor) -> bool:
        self._note("encode", x)
        return True

    def _decode(self, data: torch.Tensor, seed: int, out: torch.Tensor) -> bool:
        self._note("decode", data)
        return True


def test_each_side_is_measured_on_its_own_and_memcpy_copies_all() -> None:
    x = torch.randn(50, 30)
    spy = _Spy()
    buffers = codec._warm_buffers(x)
    case = codec._Case(spy, x, buffers, seed=0)
    case.measure()
    assert spy.seen == ["encode native", "decode native", "encode twin", "decode twin"]
    assert torch.equal(buffers.copied, x)
    assert {what: len(seconds) for what, seconds in case.times.seconds.items()} == dict.fromkeys(
        ["memcpy", "encode", "decode", "encode_twin", "decode_twin"], 1
    )


@pytest.mark.slow
@pytest.mark.timed
def test_speed_that_the_project_promises() -> None:
    """One thread, 100,000 x 256, AVX-512: Uniform at 0.4 of memcpy and 15 times its twin, TopK 5 times torch.topk."""
    module = native()
    if module is None or module.isa() != "avx512":
        pytest.skip("the promise is for AVX-512")
    rows = {row.codec: row for row in codec.run().rows}
    for bits in (1, 2, 4, 8):
        row = rows[f"Uniform({bits})"]
        assert row.encode_vs_memcpy >= 0.4
        assert row.decode_vs_memcpy >= 0.4
        assert row.encode_vs_twin >= 15
    selected = rows["TopK(0.01)"].encode_vs_torch_topk
    assert selected is not None
    assert selected >= 5
