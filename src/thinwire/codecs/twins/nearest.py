"""Rows in 1, 2, 4 or 8 bits a value, nothing at random: for differences that feed back. Twin of native/nearest.h.

A row is scaled by a power of two, so that its largest magnitude is near 1, and y is what is left without its mean:

    1 bit      code = [y > 0]            decoded = the mean of the values with that code
    2, 4 bits  code = the nearest on a line, decoded = the line that fits the row best for these codes: twice, first
               from an even grid (at 2 bits over at most 1.7 deviations around the mean, at 4 from minimum to maximum),
               then from the line found
    8 bits     code = the nearest on the grid of `Uniform`

On the wire: a row's codes, ceil(D * bits / 8) bytes, then two bfloat16: the two means, or the line at code 0 and its
step. Where the line leaves more than the row itself, as rounding can do to rows far from usual, both are zero.
"""

import torch
from torch import Tensor

from thinwire.codecs.twins.pack import from_bytes, pack, packed_bytes, to_bytes, unpack
from thinwire.codecs.twins.rows import decode_uniform as decode_line
from thinwire.codecs.twins.rows import fit_grid, row_bytes, rows_by_width, scale_to_grid
from thinwire.codecs.twins.variance import lane_sums

WIDTHS = (1, 2, 4, 8)
# Of a Gaussian's four even levels, the outer ones lie at 1.5 deviations; at 1.7 rows that are half zeros lose less.
REACH = 1.7
HUGE_EXPONENT = 187
LARGEST_BFLOAT16 = 0x7F7F


class Scaled:
    """Rows in units of a power of two near their largest magnitude: squares neither vanish nor overflow."""

    def __init__(self, x_ND: Tensor) -> None:
        self.x = x_ND
        self.width = x_ND.shape[1]
        self.lowest, self.highest = torch.aminmax(x_ND, dim=1, keepdim=True)
        magnitude = torch.maximum(self.lowest.abs(), self.highest.abs())
        exponent = (magnitude.view(torch.int32) >> 23).clamp(1, 253)
        self.unit = ((254 - exponent) << 23).view(torch.float32)
        self.back = (exponent << 23).view(torch.float32)
        self.low, self.high = self.lowest * self.unit, self.highest * self.unit
        # Summed as it is, but for a row whose sum might overflow.
        before = torch.where(exponent > HUGE_EXPONENT, 2.0**-64, 1.0)
        self.mean = self.between(lane_sums(x_ND * before) * (self.unit / before) / self.width)
        self.y = x_ND * self.unit - self.mean

    def between(self, values: Tensor) -> Tensor:
        """Never outside the row; 0.0 for -0.0, since which of them is the minimum must not show."""
        return torch.minimum(torch.maximum(values, self.low), self.high) + 0.0

    def squares(self) -> Tensor:
        """The sum of the scaled squares, double [N, 1]."""
        scaled = self.x * self.unit
        return lane_sums(scaled * scaled).double()

    def moment(self) -> Tensor:
        """The sum of y^2, double [N, 1]."""
        return lane_sums(self.y * self.y).double()

    def original(self, squares: Tensor) -> Tensor:
        """A sum of squares in the row's own units."""
        return squares * self.back.double() * self.back.double()


# (codes int32 [N, D], what travels float32 [N, 2], error in scaled units double [N, 1], can it be sent bool [N, 1])
Coded = tuple[Tensor, Tensor, Tensor, Tensor]


def code(rows: Scaled, bits: int) -> Coded:
    if bits == 1:
        return _two_means(rows)
    return _grid(rows) if bits == 8 else _line(rows, bits)


def encode_nearest(x_ND: Tensor, bits: int, out: Tensor) -> bool:
    encoded, ok = _encode(x_ND, bits)
    out.copy_(encoded.flatten())
    return ok


def decode_nearest(data: Tensor, bits: int, out_ND: Tensor) -> None:
    out_ND.copy_(_decode(data.view(len(out_ND), row_bytes(out_ND.shape[1], bits)), bits, out_ND.shape))


def add_nearest(data: Tensor, bits: int, out_ND: Tensor) -> None:
    out_ND.add_(_decode(data.view(len(out_ND), row_bytes(out_ND.shape[1], bits)), bits, out_ND.shape))


def encode_nearest_difference(x_ND: Tensor, copy_ND: Tensor, bits: int, out: Tensor) -> bool:
    """x - copy to `out`, and what `out` decodes to added to `copy`."""
    ok = encode_nearest(x_ND - copy_ND, bits, out)
    if ok:
        add_nearest(out, bits, copy_ND)
    return ok


def encode_chosen(x_ND: Tensor, bits_N: Tensor, out: Tensor) -> bool:
    """Row i at bits_N[i], one after another; 0 is not sent."""
    all_ok = True
    for bits, rows, places in rows_by_width(bits_N, x_ND.shape[1]):
        encoded, ok = _encode(x_ND[rows], bits)
        out[places] = encoded
        all_ok = all_ok and ok
    return all_ok


def decode_chosen(data: Tensor, bits_N: Tensor, out_ND: Tensor) -> None:
    """Rows of 0 bits are left as they are."""
    width = out_ND.shape[1]
    for bits, rows, places in rows_by_width(bits_N, width):
        out_ND[rows] = _decode(data[places], bits, torch.Size((len(rows), width)))


def add_chosen(data: Tensor, bits_N: Tensor, out_ND: Tensor) -> None:
    width = out_ND.shape[1]
    for bits, rows, places in rows_by_width(bits_N, width):
        out_ND[rows] += _decode(data[places], bits, torch.Size((len(rows), width)))


def encode_chosen_difference(x_ND: Tensor, copy_ND: Tensor, bits_N: Tensor, out: Tensor) -> bool:
    ok = encode_chosen(x_ND - copy_ND, bits_N, out)
    if ok:
        add_chosen(out, bits_N, copy_ND)
    return ok


def nearest_errors(x_ND: Tensor, out_N5: Tensor) -> None:
    """Each row's squared error at 0, 1, 2, 4 and 8 bits: infinite where it can't be sent, NaN where not finite."""
    out_N5.zero_()
    if x_ND.shape[1] == 0:
        return
    rows = Scaled(x_ND)
    out_N5[:, :1] = rows.original(rows.squares())
    for column, bits in enumerate(WIDTHS, start=1):
        _, _, error, ok = code(rows, bits)
        out_N5[:, column : column + 1] = torch.where(ok, rows.original(error), torch.inf)
    out_N5[~torch.isfinite(x_ND).all(dim=1)] = torch.nan


def nearest_difference_errors(x_ND: Tensor, copy_ND: Tensor, out_N5: Tensor) -> None:
    nearest_errors(x_ND - copy_ND, out_N5)


def _two_means(rows: Scaled) -> Coded:
    above = rows.y > 0
    num_above = above.sum(dim=1, keepdim=True)
    num_below = rows.width - num_above  # at least one: the mean is not below the minimum
    sum_above, sum_below = lane_sums(rows.y.clamp(min=0)), lane_sums(rows.y.clamp(max=0))
    below_mean = rows.between(rows.mean + sum_below / num_below)
    above_mean = torch.where(num_above > 0, rows.between(rows.mean + sum_above / num_above), below_mean)
    sent = _to_bfloat16(torch.cat((below_mean, above_mean), dim=1) * rows.back)
    off = sent.double() * rows.unit.double() - rows.mean.double()
    off_below, off_above = off[:, :1], off[:, 1:]
    error = rows.moment() - 2 * (off_below * sum_below.double() + off_above * sum_above.double())
    error = error + (num_below.double() * off_below * off_below + num_above.double() * off_above * off_above)
    return above.to(torch.int32), sent, error.clamp(min=0), torch.ones_like(above[:, :1])


def _line(rows: Scaled, bits: int) -> Coded:
    levels = 2**bits - 1
    low, high = rows.low - rows.mean, rows.high - rows.mean
    moment = rows.moment()
    if bits == 2:
        # float32's own root, to the last bit: torch's may be one off, and a double's is then not far enough to show.
        reach = REACH * torch.sqrt((moment.float() / rows.width).double()).float()
        low, high = torch.maximum(low, -reach), torch.minimum(high, reach)
    codes = _nearest(rows.y, low, (high - low) / levels, levels)
    slope, intercept, *_ = _fit(rows.y, codes)
    codes = _nearest(rows.y, intercept.float(), slope.float(), levels)
    slope, intercept, total, squares, product = _fit(rows.y, codes)
    sent = torch.cat(((rows.mean.double() + intercept).float(), slope.float()), dim=1) * rows.back
    sent = _to_bfloat16(sent)
    sent_low, step = sent[:, :1], sent[:, 1:]
    off, slope = sent_low.double() * rows.unit.double() - rows.mean.double(), step.double() * rows.unit.double()
    error = moment - 2 * (slope * product) + (rows.width * off * off + 2 * (off * slope * total))
    error = (error + slope * slope * squares).clamp(min=0)
    top = levels * step
    ok = torch.isfinite(top) & torch.isfinite(top + sent_low)
    mean = rows.mean.double()
    sent, error = _at_most_the_row(sent, error, moment + rows.width * (mean * mean))
    return codes, sent, error, ok


def _grid(rows: Scaled) -> Coded:
    low, step, ok = fit_grid(rows.x, 8)
    t = scale_to_grid(rows.x, low, step)
    codes = (t + 0.5).to(torch.int32).clamp_(max=255)
    left = (rows.x - (codes.to(torch.float32) * step + low)) * rows.unit
    sent, error = _at_most_the_row(torch.cat((low, step), dim=1), lane_sums(left * left).double(), rows.squares())
    return codes, sent, error, ok


def _nearest(y: Tensor, low: Tensor, step: Tensor, levels: int) -> Tensor:
    inverse = torch.where(step > 0, 1.0 / step, 0.0)
    return (y * inverse - (low * inverse - 0.5)).clamp_(min=0, max=levels).to(torch.int32)


def _fit(y: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Least squares, double [N, 1]: slope and intercept of y over codes; sums of codes, of their squares, of y code.

    y sums to zero but for rounding. A row with one code only gets the slope 0.
    """
    width = y.shape[1]
    total = codes.sum(dim=1, keepdim=True).double()
    squares = (codes * codes).sum(dim=1, keepdim=True).double()
    product = lane_sums(y * codes.to(torch.float32)).double()
    spread = width * squares - total * total
    slope = torch.where(spread > 0, (width * product) / spread, 0.0).clamp(min=0)
    return slope, -(slope * total) / width, total, squares, product


def _at_most_the_row(sent: Tensor, error: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    kept = error <= squares
    return torch.where(kept, sent, 0.0), torch.where(kept, error, squares)


def _encode(x_ND: Tensor, bits: int) -> tuple[Tensor, bool]:
    num_rows, width = x_ND.shape
    nothing = x_ND.new_zeros(num_rows, row_bytes(width, bits), dtype=torch.uint8)
    if width == 0:
        return nothing, True
    codes, sent, _, ok = code(Scaled(x_ND), bits)
    if not bool((torch.isfinite(x_ND).all(dim=1, keepdim=True) & ok).all()):
        return nothing, False
    return torch.cat((pack(codes, bits), to_bytes(sent.to(torch.bfloat16))), dim=1), True


def _decode(data: Tensor, bits: int, shape: torch.Size) -> Tensor:
    out = torch.empty(shape, device=data.device)
    if bits > 1:
        decode_line(data.flatten(), bits, out)
        return out
    codes_end = packed_bytes(shape[1], 1)
    means = from_bytes(data[:, codes_end:], torch.bfloat16).to(torch.float32)
    return torch.where(unpack(data[:, :codes_end], 1, shape[1]) > 0, means[:, 1:], means[:, :1])


def _to_bfloat16(x: Tensor) -> Tensor:
    """The nearest bfloat16, never infinite, as float32."""
    bits = x.view(torch.int32)
    sign = bits & -0x80000000
    magnitude = bits & 0x7FFFFFFF
    rounded = ((magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16).clamp(max=LARGEST_BFLOAT16)
    return ((rounded << 16) | sign).view(torch.float32)
