"""Bytes and seconds as readable text: three digits and an SI prefix."""

BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
NOTHING = "-"


def bytes_text(value: float | None) -> str:
    return _text(value, BYTES)


def seconds_text(value: float | None) -> str:
    return _text(value, SECONDS)


def rate_text(bytes_per_s: float) -> str:
    """The rate in bits per second, the usual unit of networks."""
    return _text(8 * bytes_per_s, ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")))


def share_text(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2%}"


def _text(value: float | None, units: tuple[tuple[float, str], ...]) -> str:
    if value is None:
        return NOTHING
    if value == 0:
        return f"0 {units[-1][1] if units is BYTES else units[0][1]}"
    # Rounds up to the next unit early: 999.6 kB would be shown as 1,000 kB, so it is 1.00 MB.
    size, unit = next((unit for unit in units if abs(value) >= 0.9995 * unit[0]), units[-1])
    scaled = value / size
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:,.{digits}f} {unit}"
