"""The example does what its first lines say."""

import os
import subprocess
import sys
from pathlib import Path

from thinwire import graphs

ROOT = Path(__file__).parent.parent.parent


def test_a_model_of_ones_own_trains_alone_and_under_torchrun(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    graphs.prepare("synthetic:nodes=1000,classes=4,noise=2,label_noise=0", graphs.Settings(2), shards)
    script = str(ROOT / "examples" / "own_model.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, str(shards), "sylvie"]
    for words, method in (([script, str(shards)], "exact"), (torchrun, "sylvie")):
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        line_said = next(line for line in done.stdout.splitlines() if line.startswith(f"{method}: test accuracy"))
        assert float(line_said.split()[3].rstrip("%,")) > 80
