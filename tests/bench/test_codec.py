import torch

from thinwire.bench import codec


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
