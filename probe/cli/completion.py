"""probe completion: the script that completes commands in a shell."""

import click
from click.shell_completion import shell_complete


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes verbs, options, pools and arms in SHELL.

    For this session:  eval "$(probe completion bash)"  (in fish:  probe completion fish | source). For good, put that
    line into ~/.bashrc or ~/.zshrc.
    """
    from probe.cli import COMPLETE_VARIABLE, cli

    shell_complete(cli, {}, "probe", COMPLETE_VARIABLE, f"{shell}_source")
