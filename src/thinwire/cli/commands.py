"""All subcommands, and how one is called."""

import sys
from collections.abc import Callable
from typing import ClassVar, Protocol

import tyro
from rich.console import Console

from thinwire import __version__, launch
from thinwire.cli.bench import Bench
from thinwire.cli.doctor import Doctor
from thinwire.cli.partition import Partition
from thinwire.cli.plan import Plan
from thinwire.cli.plan_gradients import PlanGradients
from thinwire.cli.plan_minibatch import PlanMinibatch
from thinwire.cli.plan_reshard import PlanReshard
from thinwire.cli.profile import Profile
from thinwire.cli.train import Train

ABOUT = "Distributed training that waits less for the network. Each subcommand has its --help; --version says which."


class Command(Protocol):
    """Check first, so that a mistake costs no time; then work."""

    joins: ClassVar[bool]  # whether all ranks of a torchrun job take part; else only the first one works

    def verify(self) -> None: ...

    def run(self, console: Console) -> None: ...


COMMANDS: dict[str, Callable[..., Command]] = {
    "train": Train,
    "partition": Partition,
    "profile": Profile,
    "plan": Plan,
    "bench": Bench,
    "doctor": Doctor,
}
# A word after `plan`; without one, training's methods.
PLANS: dict[str, Callable[..., Command]] = {
    "minibatch": PlanMinibatch,
    "gradients": PlanGradients,
    "reshard": PlanReshard,
}


def _parsed(arguments: list[str]) -> Command:
    commands, prog = COMMANDS, "thinwire"
    if arguments[:1] == ["plan"] and (word := arguments[1] if len(arguments) > 1 else "") in PLANS:
        commands, arguments = {"plan": PLANS[word]}, ["plan", *arguments[2:]]
    return tyro.extras.subcommand_cli_from_dict(commands, prog=prog, description=ABOUT, args=arguments)


def main(arguments: list[str] | None = None) -> None:
    """Parse, run, and turn a caller's mistake into one line instead of a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console()
    if arguments == ["--version"]:
        console.print(f"thinwire {__version__}", highlight=False)
        return
    try:
        command = _parsed(arguments)
        command.verify()
        seat = launch.seat_from_torchrun()
        if seat is not None and seat.rank != 0:
            if not command.joins:
                return
            console = Console(quiet=True)
        command.run(console)
    except (ValueError, OSError, launch.RankFailed, launch.LabUnavailable) as error:
        said = (isinstance(error, launch.RankFailed) and error.reason) or error
        Console(stderr=True).print(f"thinwire: {said}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("thinwire: interrupted")
        sys.exit(130)
