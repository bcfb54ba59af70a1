"""The reductions that torch may ask for: a sum, a mean, or a sum of values that are multiplied by a factor first."""

from typing import Any

from torch.distributed import ReduceOp


def factor_of(op: Any, num_ranks: int) -> float:
    """The factor by which each rank's values are multiplied before they are added up."""
    if op == ReduceOp.SUM:
        return 1.0
    if op == ReduceOp.AVG:
        return 1 / num_ranks
    # PREMUL_SUM needs its factor, which may be a tensor of one value.
    if op == ReduceOp.PREMUL_SUM and getattr(op, "factor", None) is not None:
        return float(op.factor)
    name = getattr(getattr(op, "op", op), "name", op)
    raise ValueError(f"compress: FSDP asks for ReduceOp.{name}; payloads can be added up: SUM, AVG or PREMUL_SUM")
