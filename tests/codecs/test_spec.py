"""Codecs by name."""

import re

import pytest

from thinwire.codecs import parse_codec


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("float32", "Identity()"),
        ("sign", "Sign()"),
        ("uniform:4", "Uniform(4)"),
        ("nearest:1", "Nearest(1)"),
        ("budget:0.25", "Budget(0.25)"),
        ("qsgd:4", "QSGD(4, bucket=512)"),
        ("qsgd:4:128", "QSGD(4, bucket=128)"),
        ("randomk:0.1", "RandomK(0.1)"),
    ],
)
def test_names(spec: str, shown: str) -> None:
    assert str(parse_codec(spec)) == shown


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("qsgd", "give BITS or BITS:BUCKET"),
        ("qsgd:", "give BITS or BITS:BUCKET"),
        ("qsgd:4:", "give BITS or BITS:BUCKET"),
        ("qsgd:x:128", "give BITS or BITS:BUCKET"),
        ("qsgd:4:128:2", "for example qsgd:4 or qsgd:4:128"),
        ("qsgd:4:-1", "in whole numbers"),
        ("qsgd:3", "bits is 2, 4 or 8"),
        ("qsgd:4:0", "at least one value"),
        ("uniform:4:128", "codec 'uniform:4:128'"),
        ("nearest:3", "give 1, 2, 4 or 8"),
        ("budget:0", "above 0"),
        ("budget:lots", "could not convert"),
        ("gzip", "qsgd:BITS[:BUCKET]"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"codec '{spec}'")) as caught:
        parse_codec(spec)
    assert says in str(caught.value)
