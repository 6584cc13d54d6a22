"""The commands that screens and pages print.

    commands(screen)        ["probe analyze out/runs/demo", ...]

A command stands at the start of a line, after a colon, or in backticks, or has options. Other mentions of a verb
("see probe pool regrade") are prose, of which only the verb has to exist.
"""

import re
import shlex

import click

from probe.cli import cli

# What cuts a command off from the rest of a line.
END = re.compile(r"; |;$|\)|`| \(|, | at the | to | and | for |\.$|$")
MENTION = re.compile(r"\bprobe (?=[a-z-])")


def unwrapped(screen: str) -> str:
    """The screen with wrapped sentences on one line each; a line that is a command stays one."""
    lines: list[str] = []
    for line in screen.splitlines():
        words = line.strip()
        begins = not line.startswith("  ") or words.startswith("probe ") or not words
        if begins or not lines or lines[-1].strip().startswith("probe "):
            lines.append(line)
        else:
            lines[-1] += f" {words}"
    return "\n".join(lines)


def commands(screen: str) -> list[str]:
    """Every command, once, in the order of the screen; AssertionError where a verb that is named is none."""
    found = []
    for line in unwrapped(screen).splitlines():
        for match in MENTION.finditer(line):
            before, rest = line[: match.start()], line[match.end() :]
            end = END.search(rest)
            command = f"probe {rest[: end.start()] if end else rest}".strip()
            if verb_of(command) is None:
                continue
            if not before.strip() or before.endswith((": ", "`")) or " --" in command:
                found.append(command)
    return list(dict.fromkeys(found))


def verb_of(command: str) -> tuple[list[str], click.Command] | None:
    """The words of the verb and its command; None where it is no verb."""
    words = shlex.split(command)[1:]
    verb, target = [], cli
    while isinstance(target, click.Group) and words:
        found = target.get_command(click.Context(target), words[0])
        if found is None:
            return None
        verb.append(words.pop(0))
        target = found
    return None if isinstance(target, click.Group) else (verb, target)


def check_command(line: str) -> click.Context:
    """A printed command is one of the program's, with options that it has and values that they take."""
    program, *words = shlex.split(line)
    named = verb_of(line)
    assert program == "probe"
    assert named is not None, line
    verb, command = named
    return command.make_context(line, words[len(verb) :])
