"""Tables that fit a terminal of 80 columns. Builds them; the commands print."""

from __future__ import annotations  # result types are imported for type checking only

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from thinwire.bench import batches as batch_bench
    from thinwire.bench import codec as codec_bench
    from thinwire.bench.result import CaseResult
    from thinwire.gradients import Plan


def codecs(result: codec_bench.CodecBench) -> Table:
    memcpy = statistics.median(row.memcpy_gbps for row in result.rows)
    threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
    table = Table(
        title=f"Codecs on {result.num_rows:,} x {result.num_columns} float32, {threads}, {result.isa}",
        caption=(
            f"GB of float32 a second into reused memory, median of {result.repeats} interleaved runs; "
            f"/copy: beside memcpy, here {memcpy:.1f} GB/s; /twin: beside the same codec in plain torch"
        ),
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("codec", no_wrap=True)
    for heading in ("bits", "thinner", "encode", "/copy", "/twin", "decode", "/copy", "/twin"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(
            row.codec,
            f"{row.bits:.2g}",
            f"{row.float32_over_bytes:.1f}x",
            f"{row.encode_gbps:.2f}",
            f"{row.encode_vs_memcpy:.2f}",
            f"{row.encode_vs_twin:.1f}",
            f"{row.decode_gbps:.2f}",
            f"{row.decode_vs_memcpy:.2f}",
            f"{row.decode_vs_twin:.1f}",
        )
    return table


def topk_line(result: codec_bench.CodecBench) -> str:
    shown = [f"{row.codec} {row.encode_vs_torch_topk:.1f}x" for row in result.rows if row.encode_vs_torch_topk]
    return f"beside torch.topk(sorted=False) on ready magnitudes: {', '.join(shown)}"


def batches(result: batch_bench.BatchBench) -> Table:
    table = Table(
        title=f"Batches of {result.batch} seeds, fan-outs {','.join(map(str, result.fanouts))}, of "
        f"{result.num_nodes:,} nodes and {result.num_edges:,} edges",
        caption=f"one thread, median of {result.repeats} interleaved runs; ratio: of edges a second, to thinwire's",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("", "method", "ms a batch", "M edges/s", "ratio"):
        table.add_column(heading, justify="left" if heading in ("", "method") else "right", no_wrap=True)
    for row in result.rows:
        figures = (f"{1e3 * row.seconds:.1f}", f"{row.edges_per_s / 1e6:.2f}", f"{row.ratio:.2f}")
        table.add_row(row.what, row.method, *figures)
    return table


def methods(result: CaseResult) -> Table:
    """A case's methods; the others are compared with the first."""
    # Imported here: they import every workload, which other commands do not need.
    from thinwire.bench import columns, harness

    case, workload = result.case, harness.WORKLOADS.get(result.case.workload)
    where = f"{case.hosts} hosts at {case.settings.get('rates') or ', '.join(case.rates) or case.rate}"
    runs = "/".join(str(count) for count in sorted({row.repeats for row in result.rows}))
    table = Table(
        title=f"{escape(case.name)}: {case.workload} on {where}",
        caption=(workload.CAPTION if workload else columns.CAPTION).format(runs),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    declared = workload.COLUMNS if workload else columns.USUAL
    shown = [column for column in declared if column.is_shown(case, result.rows)]
    table.add_column("method", min_width=16)
    for column in shown:
        table.add_column(column.heading, justify=column.justify, no_wrap=True)
    for row in result.rows:
        table.add_row(row.method, *(column.text(row) for column in shown))
    return table


def problems(result: CaseResult) -> Table | None:
    """Each problem's seconds by every method, each with its ratio to the plan's lower bound."""
    by_method = {row.method: row.figure("problems") for row in result.rows}
    if not by_method or not all(by_method.values()):
        return None
    table = Table(title="seconds, and over the bound", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("problem")
    for method in by_method:
        table.add_column(method, justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    for name in next(iter(by_method.values())) or ():
        figures = [problems[name] for problems in by_method.values() if problems]
        cells = [f"{figure['seconds']:.3f} {figure['over_bound']:5.2f}x" for figure in figures]
        table.add_row(name, *cells, f"{figures[-1]['bound_s']:.3f}")
    return table


def thinner(result: CaseResult) -> list[str]:
    """Lines that say how much smaller each layer's messages are than the first method's."""
    if not result.rows:
        return []
    first = result.rows[0].channels
    lines = []
    for row in result.rows[1:]:
        names = [name for name in first if name.endswith(".forward") and 0 < row.channels.get(name, 0) < first[name]]
        ratios = ", ".join(f"{name.removesuffix('.forward')} {first[name] / row.channels[name]:.1f}x" for name in names)
        if ratios:
            lines.append(f"{row.method}: halo messages thinner than {result.rows[0].method}'s by {ratios}")
    return lines


def links(profile: Mapping[str, Any]) -> Table:
    """The rate and latency of each ordered pair of ranks, as a matrix: rows send."""
    world_size = profile["world_size"]
    cells = {(row["src"], row["dst"]): row for row in profile["links"]}
    table = Table(title="Links, Mbit/s (latency in ms); rows send", box=box.SIMPLE_HEAD)
    table.add_column("from", justify="right")
    for dst in range(world_size):
        table.add_column(f"to {dst}", justify="right", no_wrap=True)
    for src in range(world_size):
        shown = [_link(cells.get((src, dst))) for dst in range(world_size)]
        table.add_row(str(src), *shown)
    return table


def check(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Predicted times beside measured ones."""
    errors = [row["error"] for row in rows]
    table = Table(
        title="Predicted beside measured",
        caption=f"error: median {statistics.median(errors):.0%}, worst {max(errors):.0%}",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("collective", "bytes", "predicted", "measured", "error"):
        table.add_column(heading, justify="left" if heading == "collective" else "right", no_wrap=True)
    for row in rows:
        times = (f"{1e3 * row[key]:.2f} ms" for key in ("predicted_s", "measured_s"))
        table.add_row(row["collective"], f"{row['bytes']:,}", *times, f"{row['error']:.0%}")
    return table


def _link(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row['bytes_per_s'] * 8 / 1e6:,.0f} ({1e3 * row['latency_s']:.2f})"


def parts(result: Mapping[str, Any]) -> Table:
    """The parts of a partition."""
    table = Table(
        title=f"{escape(result['data'])}: {result['num_nodes']:,} nodes, {result['num_edges']:,} edges",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    order = ("owned", "central", "marginal", "halo", "edges", "cut_edges", "train", "validation")
    for heading in ("part", "owned", "central", "marginal", "halo", "edges", "cut edges", "train", "validation"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["parts"]:
        table.add_row(*(_short(row[column]) for column in ("part", *order)))
    shown = {name: f"{share:.3f}" for name, share in result["balance"].items()}
    table.add_section()
    table.add_row("balance", *(shown.get(column, "") for column in order))
    return table


def _short(number: int) -> str:
    """The number in at most six characters, up to a billion."""
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= 100 * unit:
            return f"{number / unit:,.0f}{letter}"
        if number >= unit and unit >= 10**6:
            return f"{number / unit:.2f}{letter}"
    return f"{number:,}"


def partition_lines(result: Mapping[str, Any]) -> list[str]:
    thick, thin = result["bytes_per_epoch"]["float32"], result["bytes_per_epoch"]["1 bit"]
    seconds = ", ".join(f"{name} {took:.1f} s" for name, took in result["seconds"].items())
    share = result["peak_rss_bytes"] / max(1, result["graph_bytes"])
    return [
        f"cut: {result['cut_share']:.1%} of edges; halo rows: {result['halo_rows']:,}; balance (largest over mean): "
        f"other nodes {result['balance']['other']:.3f}, degrees {result['balance']['degrees']:.3f}",
        f"predicted for {result['layers']} layers of {result['hidden']}: {thick / 1e6:,.1f} MB an epoch in float32, "
        f"{thin / 1e6:,.1f} MB at one bit",
        f"{seconds}; memory peaked at {result['peak_rss_bytes'] / 1e6:,.0f} MB in `{result['peak_phase']}`, "
        f"{share:.1f} times the graph",
    ]


def epoch_line(method: str, row: Mapping[str, Any], epochs: int) -> str:
    left_s = (epochs - 1 - row["epoch"]) * row["seconds"]
    score = "-" if row["val_score"] is None else f"{row['val_score']:.2%}"
    return (
        f"{method}: epoch {row['epoch'] + 1}/{epochs}  loss {row['loss']:.4f}  validation {score}  "
        f"{row['seconds']:.2f} s  {row['bytes'] / 1e6:.2f} MB  {left_s:.0f} s left"
    )


def trained(result: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> Table:
    """The result of a run, beside that of another run if one is given."""
    runs = [result] if other is None else [other, result]
    table = Table(
        title=f"{result['model']} on {escape(result['data'])}, {result['workers']} ranks",
        caption=_fetched(result["predicted"]) if result.get("predicted") else _widths(result["messages"]),
        box=box.SIMPLE_HEAD,
        show_header=other is not None,
    )
    table.add_column("")
    for run in runs:
        table.add_column(run["method"], justify="right", no_wrap=True)
    if other is None:
        table.title = f"{result['method']}: {table.title}"
    else:
        table.add_column("ratio", justify="right", no_wrap=True)

    def row(what: str, name: str, form: str, *, ratio: bool = False) -> None:
        cells = ["-" if run[name] is None else format(run[name], form) for run in runs]
        if other is not None:
            known = ratio and result[name] and other[name]
            cells.append(f"{other[name] / result[name]:.1f}x" if known else "")
        table.add_row(what, *cells)

    row("test score", "test_score", ".2%")
    row("validation score", "val_score", ".2%")
    row("seconds an epoch, median", "epoch_s_median", ".3f", ratio=True)
    row("of them waiting for others", "exposed_s_per_epoch", ".3f", ratio=True)
    row("bytes an epoch, all ranks", "bytes_per_epoch", ",.0f", ratio=True)
    row("in float32 they were", "float32_bytes_per_epoch", ",.0f")
    return table


def assigned(record: Mapping[str, Any]) -> Table:
    """The bits that were chosen last, by layer and direction."""
    widths = sorted({int(bits) for message in record["messages"] for bits in message["rows_at_bits"]})
    predicted = record["predicted_epoch_s"]
    table = Table(
        title=f"bits of messages from epoch {record['from_epoch'] + 1} on",
        caption="share of rows at each; 0: not sent, the receiver keeps its copy"
        + ("" if predicted is None else f"; predicted {predicted:.3f} s an epoch"),
        box=box.SIMPLE_HEAD,
    )
    table.add_column("")
    for width in widths:
        table.add_column(str(width), justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for message in record["messages"]:
        rows = max(1, sum(message["rows_at_bits"].values()))
        shares = [message["rows_at_bits"].get(str(width), 0) / rows for width in widths]
        cells = [f"{share:.0%}" if share else "" for share in shares]
        table.add_row(message["channel"], *cells, f"{message['predicted_bytes']:,}")
    return table


def caches(result: Mapping[str, Any]) -> Table:
    """What each cache of minibatch training would fetch, send and hold."""
    table = Table(
        title=f"minibatch training on {escape(result['data'])}, {result['parts']} ranks, {result['steps']} steps",
        caption=f"predicted by VIP; of the bytes {result['gradient_bytes']:,} are gradients; rows held: of features, "
        "by the rank with the most",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("policy")
    for heading in ("cache", "rows fetched", "MB an epoch", "rows held", "MB held"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        table.add_row(
            row["cache_policy"],
            f"{row['cache']:g}",
            f"{row['remote_rows']:,}",
            f"{row['bytes_per_epoch'] / 1e6:,.2f}",
            f"{row['feature_rows_held']:,}",
            f"{row['memory_bytes'] / 1e6:,.1f}",
        )
    return table


def groups(plan: Plan, title: str) -> Table:
    """A plan's groups and the timeline predicted for them."""
    assert plan.predicted is not None
    table = Table(
        title=title,
        caption="predicted, in ms since backward began; a message is waited for only once backward is over",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("#", "tensors", "kB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("codec", no_wrap=True)
    for heading in ("ready", "encoded", "there", "decoded"):
        table.add_column(heading, justify="right", no_wrap=True)
    moments = ("compress_begin_s", "compress_end_s", "transfer_end_s", "decompress_end_s")
    for number, (group, times) in enumerate(zip(plan.groups, plan.predicted.groups, strict=True)):
        codec = group.codec if group.primitive == "all_reduce" else f"{group.codec}, {group.primitive}"
        facts = (str(number), str(len(group.names)), f"{group.nbytes / 1e3:,.1f}", codec)
        table.add_row(*facts, *(f"{times[moment] * 1e3:.1f}" for moment in moments))
    return table


def fusions(plan: Plan, measured_s: float) -> Table:
    """The predicted step of the plan, beside those of the usual ways to send gradients."""
    assert plan.predicted is not None
    gap = f"at most {plan.predicted.gap_s * 1e3:.2f} ms above the best" if plan.predicted.gap_s else "proven the best"
    table = Table(
        caption=f"this plan is {gap} of the planner's model; steps by it took {measured_s * 1e3:.1f} ms",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("way")
    for heading in ("ms a step", "times none"):
        table.add_column(heading, justify="right", no_wrap=True)
    steps = {"this plan": plan.predicted.step_s, **plan.alternatives}
    for name, step_s in sorted(steps.items(), key=lambda item: item[1]):
        table.add_row(name, f"{step_s * 1e3:.1f}", f"{steps['none'] / step_s:.2f}")
    return table


def _fetched(predicted: Mapping[str, Any]) -> str:
    """A caption that says what minibatch training was predicted to fetch and send."""
    return (
        f"{predicted['steps']} steps an epoch; {predicted['cached_rows']:,} rows cached over all ranks; predicted: "
        f"{predicted['remote_rows']:,} rows fetched and {predicted['bytes_per_epoch']:,} bytes an epoch"
    )


def _widths(messages: Sequence[Mapping[str, Any]]) -> str:
    """A caption that says how many columns each layer sends: the rows it reads, or those after its linear map."""
    later = [row for row in messages if not row["once"]]
    shown = ", ".join(
        f"layer {row['layer']}: {row['sends']} columns" + (" (after its map)" if row["sends"] < row["reads"] else "")
        for row in later
    )
    return f"features were fetched once; sent an epoch: {shown}" if later else "features were fetched once"
