"""What more than one command lets its user choose among."""

from typing import Literal

Rows = Literal["auto", "float32", "float16", "uniform:8", "uniform:4", "uniform:2", "uniform:1"]
