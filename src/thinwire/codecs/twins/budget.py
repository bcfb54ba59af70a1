"""Which rows to send, at how many bits, under a budget of bytes; how to tell the receiver. Twin of native/budget.cpp.

Each row has the choices 0, 1, 2, 4 and 8 bits and the squared error that each leaves. Along the lower hull of a row's
(bytes, error), each further byte gains less than the one before it. All rows' steps along their hulls, by falling
gain a byte times the row's weight, are taken until one does not fit: the best choice at that number of bytes. Of the
next 64 those that still fit are taken too.

On the wire a byte says how it goes on:

    0   nothing is sent
    1   a bit for each row: is it sent
    2   the number of rows sent, 4 bytes, and their numbers in Elias and Fano's code (twins/sparse.py)

whichever is smallest; then two bits for each row sent: 0 to 3 for 1, 2, 4 and 8 bits a value.
"""

from bisect import bisect_right

import torch
from torch import Tensor

from thinwire.codecs.twins.nearest import add_chosen, encode_chosen, nearest_errors
from thinwire.codecs.twins.pack import pack, packed_bytes, unpack
from thinwire.codecs.twins.rows import row_bytes
from thinwire.codecs.twins.sparse import position_bytes, read_positions, write_positions

CHOICES = (0, 1, 2, 4, 8)
# What a row adds to the header, about: it counts where steps are compared, not where they are counted.
SENT_COST = 1
# Steps past the first that does not fit which are searched for smaller ones.
FILL = 64
COUNT_BYTES = 4
NOTHING, BITMAP, POSITIONS = 0, 1, 2


def sent_bytes(num_rows: int, num_sent: int) -> int:
    """The size of what says which rows are sent."""
    if num_sent == 0:
        return 1
    positions = COUNT_BYTES + sum(position_bytes(num_rows, num_sent))
    return 1 + min(packed_bytes(num_rows, 1), positions) + packed_bytes(num_sent, 2)


def choose_rows(errors_N5: Tensor, weights_N: Tensor, must_N: Tensor, width: int, size: int, bits_N: Tensor) -> None:
    """Fill bits_N so that all fits into `size` bytes. Rows that must be sent come first, the largest `must` first."""
    num_rows = len(errors_N5)
    costs = [row_bytes(width, bits) for bits in CHOICES]
    choices = torch.zeros_like(must_N, dtype=torch.int64)
    forced = torch.nonzero(must_N > 0).flatten()

    def fits(num_sent: int, payload: int) -> bool:
        return sent_bytes(num_rows, num_sent) + payload <= size

    if not fits(len(forced), len(forced) * costs[1]):
        gain = (errors_N5[forced, 0] - errors_N5[forced, 1]).clamp(min=0) * weights_N[forced].double()
        order = _falling(_key(gain / (costs[1] + SENT_COST)))
        order = order[_falling(must_N[forced][order])]
        taken = bisect_right(range(len(forced)), False, key=lambda i: not fits(i + 1, (i + 1) * costs[1]))
        choices[forced[order[:taken]]] = 1
        bits_N.copy_(torch.tensor(CHOICES, device=bits_N.device)[choices])
        return

    choices[forced] = 1
    row, before, after, key = _steps(errors_N5, weights_N.double(), choices, costs)
    order = torch.argsort(row, stable=True)
    order = order[_falling(key[order])]
    row, before, after = row[order], before[order], after[order]
    payloads = torch.tensor(costs, device=row.device)
    grown = payloads[after] - payloads[before]
    payload = (len(forced) * costs[1] + grown.cumsum(0)).tolist()
    num_sent = (len(forced) + (before == 0).cumsum(0)).tolist()
    first = bisect_right(range(len(row)), False, key=lambda i: not fits(num_sent[i], payload[i]))
    choices.scatter_reduce_(0, row[:first], after[:first], "amax")
    sent, used = (num_sent[first - 1], payload[first - 1]) if first else (len(forced), len(forced) * costs[1])
    missed: set[int] = set()
    for i in range(first, min(first + FILL, len(row))):
        own, new = int(row[i]), int(before[i] == 0)
        if own in missed or not fits(sent + new, used + int(grown[i])):
            missed.add(own)  # a row's later steps need this one
            continue
        sent, used = sent + new, used + int(grown[i])
        choices[own] = after[i]
    bits_N.copy_(torch.tensor(CHOICES, device=bits_N.device)[choices])


def encode_budget(x_ND: Tensor, weights_N: Tensor, must_N: Tensor, out: Tensor) -> bool:
    """Which rows are sent at how many bits, then their bytes, then zeros, to `out`; False where one is not finite."""
    num_rows, width = x_ND.shape
    errors_N5 = torch.empty(num_rows, len(CHOICES), dtype=torch.float64, device=x_ND.device)
    nearest_errors(x_ND, errors_N5)
    if not bool(torch.isfinite(errors_N5[:, 0]).all()):
        return False
    bits_N = torch.empty(num_rows, dtype=torch.uint8, device=x_ND.device)
    choose_rows(errors_N5, weights_N, must_N, width, len(out), bits_N)
    begin, end = row_places(bits_N, width)
    write_sent(bits_N, out[:begin])
    out[end:] = 0
    return encode_chosen(x_ND, bits_N, out[begin:end])


def encode_budget_difference(x_ND: Tensor, copy_ND: Tensor, weights_N: Tensor, must_N: Tensor, out: Tensor) -> bool:
    """x - copy to `out`, and what `out` decodes to added to `copy`."""
    if not encode_budget(x_ND - copy_ND, weights_N, must_N, out):
        return False
    bits_N = torch.empty(len(x_ND), dtype=torch.uint8, device=x_ND.device)
    begin = read_sent(out, bits_N)
    begin, end = row_places(bits_N, x_ND.shape[1], begin)
    add_chosen(out[begin:end], bits_N, copy_ND)
    return True


def row_places(bits_N: Tensor, width: int, begin: int = 0) -> tuple[int, int]:
    """Where the rows' bytes begin and end."""
    counts = torch.bincount(bits_N, minlength=9)[list(CHOICES[1:])].tolist()
    begin = begin or sent_bytes(len(bits_N), sum(counts))
    sizes = [count * row_bytes(width, bits) for count, bits in zip(counts, CHOICES[1:], strict=True)]
    return begin, begin + sum(sizes)


def write_sent(bits_N: Tensor, out: Tensor) -> None:
    num_rows = len(bits_N)
    sent = torch.nonzero(bits_N).flatten()
    out.zero_()
    if not len(sent):
        return
    widths_begin = len(out) - packed_bytes(len(sent), 2)
    if packed_bytes(num_rows, 1) <= COUNT_BYTES + sum(position_bytes(num_rows, len(sent))):
        out[0] = BITMAP
        out[1:widths_begin] = pack((bits_N > 0).to(torch.int32), 1)
    else:
        out[0] = POSITIONS
        for i in range(COUNT_BYTES):
            out[1 + i] = len(sent) >> (8 * i) & 0xFF
        write_positions(sent, num_rows, out[1 + COUNT_BYTES : widths_begin])
    widths = bits_N[sent].to(torch.int32)
    out[widths_begin:] = pack((widths > 1).to(torch.int32) + (widths > 2).to(torch.int32) + (widths > 4), 2)


def read_sent(data: Tensor, bits_N: Tensor) -> int:
    """Fill bits_N, and return how many bytes of `data` said so; -1 where they can't be from `write_sent`."""
    num_rows, length = len(bits_N), len(data)
    bits_N.zero_()
    kind = int(data[0]) if length else -1
    if kind == NOTHING:
        return 1
    if kind == BITMAP:
        widths_begin = 1 + packed_bytes(num_rows, 1)
        if widths_begin > length:
            return -1
        marks = unpack(data[1:widths_begin], 1, 8 * (widths_begin - 1))
        if bool(marks[num_rows:].any()):
            return -1
        sent = torch.nonzero(marks).flatten()
    elif kind == POSITIONS and length > COUNT_BYTES:
        num_sent = sum(int(data[1 + i]) << (8 * i) for i in range(COUNT_BYTES))
        if not 1 <= num_sent <= num_rows:
            return -1
        widths_begin = 1 + COUNT_BYTES + sum(position_bytes(num_rows, num_sent))
        found = (
            read_positions(data[1 + COUNT_BYTES : widths_begin], num_sent, num_rows) if widths_begin <= length else None
        )
        if found is None:
            return -1
        sent = found
    else:
        return -1
    end = widths_begin + packed_bytes(len(sent), 2)
    if end > length:
        return -1
    bits_N[sent] = (1 << unpack(data[widths_begin:end], 2, len(sent))).to(torch.uint8)
    return end


def _steps(
    errors_N5: Tensor, weights_N: Tensor, start_N: Tensor, costs: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(row, choice before, choice after, key) of each row's steps along its hull, a row's own in order."""
    compared = torch.tensor([0] + [cost + SENT_COST for cost in costs[1:]], device=errors_N5.device)
    rows = torch.arange(len(errors_N5), device=errors_N5.device)
    now, limit = start_N, torch.full_like(weights_N, torch.inf)
    steps = []
    while len(rows):
        left = errors_N5[rows, now]
        best, target = torch.zeros_like(left), torch.zeros_like(now)
        for choice in range(1, len(CHOICES)):
            gain = left - errors_N5[rows, choice]
            rate = weights_N[rows] * gain / (compared[choice] - compared[now])
            # Of equal rates the farthest choice: they are one step.
            better = (choice > now) & (gain > 0) & (rate > 0) & (rate >= best)
            best, target = torch.where(better, rate, best), torch.where(better, choice, target)
        moves = target > 0
        best = torch.minimum(best, limit)[moves]  # rounding must not swap a row's steps
        rows, target, limit = rows[moves], target[moves], best
        steps.append((rows, now[moves], target, _key(best)))
        now = target
    row, before, after, key = (torch.cat(column) for column in zip(*steps, strict=True))
    return row, before, after, key


def _key(rate: Tensor) -> Tensor:
    """The upper half of a positive double, which orders like it to 2^-20."""
    return rate.view(torch.int64) >> 32


def _falling(key: Tensor) -> Tensor:
    return torch.argsort(key, descending=True, stable=True)
