"""Tensor -> fewer bytes -> tensor. Knows no network."""

from thinwire.codecs.base import Codec
from thinwire.codecs.bucketed import Bucketed
from thinwire.codecs.budget import Budget
from thinwire.codecs.centred import Centred
from thinwire.codecs.copies import BFloat16, Float16, Identity
from thinwire.codecs.feedback import ErrorFeedback
from thinwire.codecs.fitted import Fitted
from thinwire.codecs.mixed import Mixed
from thinwire.codecs.nearest import Nearest
from thinwire.codecs.parts import Parts
from thinwire.codecs.qsgd import QSGD
from thinwire.codecs.scaled import Sign, Ternary
from thinwire.codecs.seeds import seed_from
from thinwire.codecs.sparse import RandomK, TopK
from thinwire.codecs.spec import parse_codec
from thinwire.codecs.uniform import Uniform, variances

__all__ = [
    "QSGD",
    "BFloat16",
    "Bucketed",
    "Budget",
    "Centred",
    "Codec",
    "ErrorFeedback",
    "Fitted",
    "Float16",
    "Identity",
    "Mixed",
    "Nearest",
    "Parts",
    "RandomK",
    "Sign",
    "Ternary",
    "TopK",
    "Uniform",
    "parse_codec",
    "seed_from",
    "variances",
]
