"""Seeds made of what a message is, never of the clock: (run, epoch, layer, rank, ...)."""

MASK = 2**64 - 1


def seed_from(*parts: int) -> int:
    """One seed from whole numbers, in order: another part, or another order, gives an unrelated seed."""
    state = len(parts)
    for part in parts:
        state = _splitmix64(state ^ _splitmix64(part & MASK))
    return state >> 1  # 63 bits: a seed fits torch's int64


def _splitmix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)
