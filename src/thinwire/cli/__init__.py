"""The `thinwire` command: one file and one dataclass of options a subcommand. The only folder that prints."""


def main(arguments: list[str] | None = None) -> None:
    # Spawned ranks import the script that started the launcher, and so this file: all else is imported when called.
    from thinwire.cli.commands import main as run

    run(arguments)
