"""Compare methods in one run: interleaved, as medians with their spread."""
