"""The codecs in plain torch: specification, fallback and test oracle of `native/`, equal to it bit for bit.

One file here for one header there, same names, same argument order; runs on any device.
"""

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
    "add_copy",
    "add_mixed",
    "add_qsgd",
    "add_randomk",
    "add_sign",
    "add_ternary",
    "add_topk",
    "add_uniform",
    "decode_copy",
    "decode_mixed",
    "decode_qsgd",
    "decode_randomk",
    "decode_sign",
    "decode_ternary",
    "decode_topk",
    "decode_uniform",
    "drop_rows",
    "encode_copy",
    "encode_mixed",
    "encode_qsgd",
    "encode_randomk",
    "encode_sign",
    "encode_ternary",
    "encode_topk",
    "encode_uniform",
    "fit_scale",
    "row_variances",
]
