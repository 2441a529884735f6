"""Options that messages name: a request has none, and a command has those that its messages name."""

import ast
import re
from pathlib import Path

import pytest
import typer

import seq2seq
from seq2seq import cli

PACKAGE = Path(seq2seq.__file__).parent
OTHER_PROGRAMS = {"--nproc-per-node": "torchrun", "--check": "msgfmt"}
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def options_in_messages(path):
    """Return the options in the messages of errors and warnings in a module, with their line numbers."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Raise) or name in ("warn", "invalid", "ApiError"):
            values = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
            message = " ".join(value for value in values if isinstance(value, str))
            found += [(node.lineno, option) for option in OPTION.findall(message)
                      if OTHER_PROGRAMS.get(option, "\0") not in message]
    return found


# Modules that a request reaches. --placeholder is an option of `translate` alone; what a server's start says is for its
# operator.
REQUESTS = [path for path in sorted((PACKAGE / "documents").rglob("*.py"))
            if path.stem not in ("adherence", "placeholders")]
REQUESTS += [PACKAGE / "serve" / f"{name}.py" for name in (
    "app", "compression", "connections", "deepl", "deepl_documents", "detection", "directions", "endpoints", "errors",
    "files", "parameters", "scheduler", "service")]


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
def test_no_message_to_a_client_names_an_option_of_the_command_line(path):
    assert options_in_messages(path) == []


def test_a_command_has_the_options_that_its_messages_name():
    commands = typer.main.get_command(cli.application([])).commands
    assert len(commands) > 10
    for name, command in commands.items():
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        path = PACKAGE / "cli" / f"{name.replace('-', '_')}.py"
        for line, option in options_in_messages(path if path.exists() else path.with_stem(f"{path.stem}_")):
            assert option in known, f"{path}:{line}: {option}"
