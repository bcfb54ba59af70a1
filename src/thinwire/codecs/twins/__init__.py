"""The codecs in plain torch: specification, fallback and test oracle of `native/`, equal to it bit for bit.

One file here for one header there, same names, same argument order; runs on any device.
"""

from thinwire.codecs.twins.budget import (
    choose_rows,
    encode_budget,
    encode_budget_difference,
    read_sent,
    write_sent,
)
from thinwire.codecs.twins.copy import add_copy, decode_copy, encode_copy
from thinwire.codecs.twins.drop import drop_rows
from thinwire.codecs.twins.flat import (
    add_qsgd,
    add_sign,
    add_ternary,
    decode_qsgd,
    decode_sign,
    decode_ternary,
    encode_qsgd,
    encode_sign,
    encode_ternary,
    fit_scale,
)
from thinwire.codecs.twins.nearest import (
    add_chosen,
    add_nearest,
    decode_chosen,
    decode_nearest,
    encode_chosen,
    encode_chosen_difference,
    encode_nearest,
    encode_nearest_difference,
    nearest_difference_errors,
    nearest_errors,
)
from thinwire.codecs.twins.rows import (
    add_mixed,
    add_uniform,
    decode_mixed,
    decode_uniform,
    encode_mixed,
    encode_uniform,
)
from thinwire.codecs.twins.sparse import (
    add_randomk,
    add_topk,
    decode_randomk,
    decode_topk,
    encode_randomk,
    encode_topk,
)
from thinwire.codecs.twins.variance import row_variances

__all__ = [
    "add_chosen",
    "add_copy",
    "add_mixed",
    "add_nearest",
    "add_qsgd",
    "add_randomk",
    "add_sign",
    "add_ternary",
    "add_topk",
    "add_uniform",
    "choose_rows",
    "decode_chosen",
    "decode_copy",
    "decode_mixed",
    "decode_nearest",
    "decode_qsgd",
    "decode_randomk",
    "decode_sign",
    "decode_ternary",
    "decode_topk",
    "decode_uniform",
    "drop_rows",
    "encode_budget",
    "encode_budget_difference",
    "encode_chosen",
    "encode_chosen_difference",
    "encode_copy",
    "encode_mixed",
    "encode_nearest",
    "encode_nearest_difference",
    "encode_qsgd",
    "encode_randomk",
    "encode_sign",
    "encode_ternary",
    "encode_topk",
    "encode_uniform",
    "fit_scale",
    "nearest_difference_errors",
    "nearest_errors",
    "read_sent",
    "row_variances",
    "write_sent",
]
