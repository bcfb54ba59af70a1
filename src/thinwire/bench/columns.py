"""Columns of a case's table: a heading, a function from a row to text, an alignment. Only cli/ prints them.

Each workload declares its COLUMNS and the CAPTION below the table; braces in the caption become the number of runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from thinwire.bench.case import Case
from thinwire.bench.result import MethodRow

NOTHING = "-"
CAPTION = "median of {} interleaved runs (fastest to slowest); waiting: share of a step's time"


@dataclass(frozen=True)
class Column:
    """`is_shown` decides from the case and all its rows whether the column is shown."""

    heading: str
    text: Callable[[MethodRow], str]
    is_shown: Callable[[Case, Sequence[MethodRow]], bool] = lambda case, rows: True
    justify: Literal["left", "right"] = "right"


def figure(heading: str, name: str, form: str) -> Column:
    """A column for a figure that the workload adds, in the format `form`."""

    return Column(heading, lambda row: figure_text(row, name, form))


def figure_text(row: MethodRow, name: str, form: str) -> str:
    value = row.figure(name)
    return NOTHING if value is None else format(value, form)


def where_any(name: str) -> Callable[[Case, Sequence[MethodRow]], bool]:
    """An `is_shown` that is true if any row has this figure and it is not 0."""
    return lambda case, rows: any(row.figure(name) for row in rows)


SECONDS = Column("seconds", lambda row: f"{row.seconds_median:.4g}")
# A table has only 80 columns: a prediction, if there is one, replaces this column.
FROM_TO = Column(
    "from-to",
    lambda row: f"{row.seconds_low:.3g}-{row.seconds_high:.3g}",
    lambda case, rows: not where_any("predicted_s")(case, rows),
)
RATIO = Column("ratio", lambda row: f"{row.ratio:.2f}x")
MB_SENT = Column("MB sent", lambda row: f"{row.figure('wire_bytes', row.bytes) / 1e6:,.2f}")
WAITING = Column("waiting", lambda row: f"{row.figure('exposed_share', row.exposed_share):.0%}")
PREDICTED = replace(figure("predicted", "predicted_s", ".4g"), is_shown=where_any("predicted_s"))
CHOOSING = replace(figure("choosing", "assign_share", ".1%"), is_shown=where_any("assign_share"))


def beside_limit(heading: str) -> Column:
    """A column for seconds over the seconds of the limit."""
    return Column(
        heading, lambda row: f"{row.limit_ratio:.2f}", lambda case, rows: any(row.limit_ratio for row in rows)
    )


USUAL = (SECONDS, FROM_TO, RATIO, MB_SENT, WAITING, beside_limit("/free"), PREDICTED, CHOOSING)
