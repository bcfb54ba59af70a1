"""The table of subcommands, and the entry point that parses and runs one."""

import importlib
import sys
import typing
from dataclasses import MISSING, fields
from typing import Any, ClassVar, NamedTuple, Protocol

from rich.console import Console
from rich.table import Table

from thinwire import __version__
from thinwire.cli.spelling import check_choices, nearest
from thinwire.launch.failures import RankFailed
from thinwire.launch.rank_spec import rank_spec_from_torchrun

ABOUT = "Distributed training that waits less for the network."


class Command(Protocol):
    """`verify` runs first, so that a mistake costs no time; then `run` does the work."""

    joins: ClassVar[bool]  # whether all ranks of a torchrun job take part; if not, only rank 0 works

    def verify(self) -> None: ...

    def run(self, console: Console) -> None: ...


class Entry(NamedTuple):
    """A command in the table. Its dataclass is imported only when it is called, since some imports take long."""

    where: str  # file:class
    what: str
    example: str


COMMANDS = {
    "train": Entry("train:Train", "train on a graph in parts", "train auto"),
    "plan": Entry("plan:Plan", "what would methods take?", "plan --hosts 8 --rate 1gbit"),
    "partition": Entry("partition:Partition", "cut a graph into parts", "partition graph.npz --parts 4"),
    "profile": Entry("profile:Profile", "measure wires and codecs", "profile --workers 4"),
    "bench": Entry("bench:Bench", "methods side by side", "bench benchmarks/cases/exchange.toml"),
    "report": Entry("report:Report", "look at runs in a browser", "report run"),
    "doctor": Entry("doctor:Doctor", "what has this machine?", "doctor"),
}
# Words after `plan`. Without one, `plan` compares training methods.
PLANS = {
    "minibatch": Entry("plan_minibatch:PlanMinibatch", "what does a cache save?", "plan minibatch --data shards"),
    "gradients": Entry(
        "plan_gradients:PlanGradients", "any model's gradients", "plan gradients --network my.module:make"
    ),
    "reshard": Entry("plan_reshard:PlanReshard", "between two meshes", "plan reshard --help"),
}


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments and run the command. A caller's mistake gives one line instead of a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    console = Console()
    if arguments == ["--version"]:
        console.print(f"thinwire {__version__}", highlight=False)
        return
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        show_help(console)
        sys.exit(0 if arguments else 2)
    try:
        command = parsed(arguments)
        command.verify()
        rank_spec = rank_spec_from_torchrun()
        if rank_spec is not None and rank_spec.rank != 0:
            if not command.joins:
                return
            console = Console(quiet=True)
        command.run(console)
    except Exception as error:
        # In a rank that torchrun has started, errors come as they are; those of thinwire's own explain themselves.
        if not isinstance(error, (ValueError, OSError)) and not type(error).__module__.startswith("thinwire."):
            raise
        message = (isinstance(error, RankFailed) and error.reason) or error
        Console(stderr=True).print(f"thinwire: {message}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("thinwire: interrupted")
        sys.exit(130)


def parsed(arguments: list[str]) -> Command:
    """The command with its options, parsed from these words."""
    name, *rest = arguments
    if name not in COMMANDS:
        raise ValueError(f"there is no command {name!r}; give one of {', '.join(COMMANDS)}.{nearest(name, COMMANDS)}")
    entry, called = COMMANDS[name], name
    if name == "plan" and rest and not rest[0].startswith("-"):
        if rest[0] not in PLANS:
            known = f"one of {', '.join(PLANS)}, or options"
            raise ValueError(f"thinwire plan {rest[0]}; give {known}.{nearest(rest[0], PLANS)}")
        entry, called, rest = PLANS[rest[0]], f"plan {rest[0]}", rest[1:]
    if name == "train":  # each method has options of its own
        from thinwire.cli.train_words import train_from

        return train_from(rest)
    file, _, kind = entry.where.partition(":")
    command: Any = getattr(importlib.import_module(f"thinwire.cli.{file}"), kind)
    if not rest and all(field.default is not MISSING for field in fields(command)):
        default: Command = command()  # nothing to parse, so tyro need not be imported
        return default
    import tyro

    check_choices(typing.get_type_hints(command), rest)
    parsed_command: Command = tyro.cli(command, prog=f"thinwire {called}", args=rest)
    return parsed_command


def show_help(console: Console) -> None:
    """Print one screen: the commands, each with an example."""
    console.print(f"{ABOUT} thinwire {__version__}\n", highlight=False)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    for name, entry in COMMANDS.items():
        table.add_row(f"[bold]{name}[/]", entry.what, f"[dim]{entry.example}[/]")
        if name == "plan":
            for word, plan_entry in PLANS.items():
                table.add_row(f"  {word}", plan_entry.what, f"[dim]{plan_entry.example}[/]")
    console.print(table)
    console.print(
        "\nEach has its own --help, with examples and all options. Start with: thinwire doctor", highlight=False
    )
