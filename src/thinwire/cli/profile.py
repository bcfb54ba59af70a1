"""`thinwire profile`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console

from thinwire import artifacts, launch
from thinwire.bench import codec as codec_bench
from thinwire.bench import links as links_bench
from thinwire.cli import limit, tables
from thinwire.cli.limit import Limit
from thinwire.launch import Lab, lab

CHECK_DRAWS = 20


@dataclass
class Profile:
    """Measure the links and the codecs here, and write profile.json, from which plans are made.

    thinwire profile                              two ranks on this machine

    thinwire profile --hosts 4 --rate 100mbit     four emulated hosts (root, iproute2)

    thinwire profile --hosts 4 --rate 1gbit --check  and how far predictions are off
    """

    joins: ClassVar[bool] = True
    workers: int = 2
    """Number of ranks on this machine."""
    hosts: int = 0
    """Number of emulated hosts with one rank each, instead of --workers."""
    rate: Annotated[str, tyro.conf.arg(metavar="RATE")] = "1gbit"
    """Rate of each emulated host's link, both ways."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Predict 20 collectives with random payloads, then measure them."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("profile.json")
    """File to write the profile to."""
    seed: int = 0
    """Seed of the payloads of --check."""
    limit: Limit = limit.USUAL
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the result to this file too."""

    def verify(self) -> None:
        for path in self._files():
            artifacts.check_writable(path)
        if self.workers < 1:
            raise ValueError(f"--workers is {self.workers}; give 1 or more")
        lab.parse_rate(self.rate)
        limit.check(self.limit)
        if self.hosts < 0:
            raise ValueError(f"--hosts is {self.hosts}; give 1 or more, or leave it out for ranks on this machine")
        if self.hosts and (problem := lab.missing()):
            raise ValueError(problem)

    def run(self, console: Console) -> None:
        draws = CHECK_DRAWS if self.check else 0
        if self.hosts:
            waiting = Console(stderr=True).status(f"{self.hosts} emulated hosts at {self.rate}: about half a minute")
            with waiting, Lab(self.hosts, rate=self.rate) as hosts:
                measured = hosts.run(links_bench.profile, draws, self.seed, self.limit)[0]
        else:
            with Console(stderr=True, quiet=console.quiet).status(f"{self.workers} ranks on this machine"):
                measured = launch.run(links_bench.profile, draws, self.seed, self.limit, workers=self.workers)[0]
        if console.quiet:  # in a torchrun job, only rank 0 prints
            return
        with Console(stderr=True).status("codecs on this machine"):
            codecs = codec_bench.run(num_rows=2048, seed=self.seed)
        rates = {row.codec: {"encode_gbps": row.encode_gbps, "decode_gbps": row.decode_gbps} for row in codecs.rows}
        profile = {**artifacts.stamp(seed=self.seed, world_size=measured["world_size"]), **measured, "codecs": rates}
        if self.hosts:
            profile |= {"hosts": self.hosts, "rate": self.rate}
        console.print(tables.links(measured))
        if self.check:
            console.print(tables.check(measured["check"]))
        for path in self._files():
            artifacts.write_json(path, profile)
            console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)

    def _files(self) -> list[Path]:
        return [self.out, *([self.json] if self.json else [])]
