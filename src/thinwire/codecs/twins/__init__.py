"""The codecs in plain torch: specification, fallback and test oracle of `native/`, equal to it bit for bit.

One file here for one header there, same names, same argument order; runs on any device.
"""

from thinwire.codecs.twins.copy import decode_copy, encode_copy
from thinwire.codecs.twins.drop import drop_rows
from thinwire.codecs.twins.flat import (
    decode_qsgd,
    decode_sign,
    decode_ternary,
    encode_qsgd,
    encode_sign,
    encode_ternary,
)
from thinwire.codecs.twins.rows import decode_mixed, decode_uniform, encode_mixed, encode_uniform
from thinwire.codecs.twins.sparse import decode_randomk, decode_topk, encode_randomk, encode_topk
from thinwire.codecs.twins.variance import row_variances

__all__ = [
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
    "row_variances",
]
