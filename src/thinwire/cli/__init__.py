"""The `thinwire` command: each subcommand is a file with a dataclass of options. The only folder that prints."""


def main(arguments: list[str] | None = None) -> None:
    # Spawned ranks import the script that started the launcher, and so this file too. It imports the rest when called.
    from thinwire.cli.commands import main as run

    run(arguments)
