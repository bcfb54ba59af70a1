"""What torch may ask for when it reduces: a sum, a mean, or a sum of what was multiplied before."""

from typing import Any

from torch.distributed import ReduceOp


def factor_of(op: Any, num_ranks: int) -> float:
    """What every rank's values are multiplied by before they are added up."""
    if op == ReduceOp.SUM:
        return 1.0
    if op == ReduceOp.AVG:
        return 1 / num_ranks
    # Without its factor PREMUL_SUM says nothing; a factor that is a tensor has one value.
    if op == ReduceOp.PREMUL_SUM and getattr(op, "factor", None) is not None:
        return float(op.factor)
    name = getattr(getattr(op, "op", op), "name", op)
    raise ValueError(f"compress: FSDP asks for ReduceOp.{name}; payloads can be added up: SUM, AVG or PREMUL_SUM")
