"""The result of a case: one row per method."""

from dataclasses import asdict, dataclass
from typing import Any

from thinwire.bench.case import Case


@dataclass(frozen=True)
class MethodRow:
    """One method's steps: seconds until the last rank is done, bytes of all ranks, share of time spent waiting."""

    method: str
    seconds_median: float
    seconds_low: float
    seconds_high: float
    ratio: float  # the first method's median over this one's
    bytes: int
    exposed_share: float
    repeats: int
    channels: dict[str, int]  # bytes by channel
    limit_ratio: float | None = None  # its seconds over the seconds of the limit, such as `free`
    more: dict[str, Any] | None = None  # figures that the workload adds

    def figure(self, name: str, otherwise: Any = None) -> Any:
        """A figure that the workload adds."""
        return (self.more or {}).get(name, otherwise)


@dataclass(frozen=True)
class CaseResult:
    """The result of a case. `failed` is the error that stopped it, or None."""

    case: Case
    rows: list[MethodRow]
    failed: str | None

    def to_json(self) -> dict[str, Any]:
        case = asdict(self.case)
        rate = list(self.case.rates) or self.case.rate
        rows = []
        for row in self.rows:
            content = asdict(row)
            more = content.pop("more") or {}
            rows.append({name: value for name, value in (content | more).items() if value is not None})
        return {"case": case.pop("name"), **case, "rate": rate, "rows": rows, "failed": self.failed}
