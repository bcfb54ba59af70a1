"""Methods side by side in one run, interleaved, medians with their spread."""
