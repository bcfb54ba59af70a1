"""Reports on runs: an HTML page, a trace of what each rank did when, scalars for TensorBoard. Only reads files."""

from thinwire.report.page import write_page
from thinwire.report.read import read_runs
from thinwire.report.records import Run
from thinwire.report.trace import write_trace

__all__ = ["Run", "read_runs", "write_page", "write_trace"]
