"""Who does the work: the native module where it loads, else the twins, said once."""

import os
import subprocess
import sys

import torch

from tests.codecs.every import normal
from thinwire.codecs import Uniform, twins
from thinwire.codecs.kernels import kernels_for, native, twins_only

WITHOUT_NATIVE = """
import sys, warnings
sys.modules["thinwire._native"] = None
import torch
from thinwire.codecs import Uniform
x = torch.arange(1000.0).view(10, 100)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        data = Uniform(4).encode(x, seed=5)
print([str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)])
print(data.sum().item())
"""


def run(script: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout.splitlines()


def test_without_the_module_the_twins_serve_and_one_warning_says_so() -> None:
    warned, total = run(WITHOUT_NATIVE)
    assert warned.count("native kernels could not be loaded") == 1
    x = torch.arange(1000.0).view(10, 100)
    assert int(total) == int(Uniform(4).encode(x, seed=5).sum())


def test_the_switch_turns_it_off_without_a_word() -> None:
    warned, _ = run(WITHOUT_NATIVE, THINWIRE_NATIVE="0")
    assert warned == "[]"


def test_native_for_cpu_twins_on_request() -> None:
    x = normal(2, 3)
    assert kernels_for(x) is native()
    with twins_only():
        assert kernels_for(x) is twins
    assert kernels_for(x) is native()
    assert kernels_for(torch.empty(2, device="meta")) is twins
