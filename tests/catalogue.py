"""Catalogues of wrong inputs and their messages, the only place where the wording of messages is tested.

A catalogue is a test module in tests/messages/ with one function for each wrong input, and a text file of the same name
with the whole messages. `UPDATE_MESSAGES=1 pytest tests/messages` writes the files; the difference is then read like
any other change. Other tests expect only the type of an error, or the place that it names.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

Case = Callable[[Path], object]
HEADING = re.compile(r"^== (.+)\n", re.MULTILINE)


class Catalogue:
    """Wrong inputs of one kind. name: name of the text file in tests/messages, without its suffix."""

    def __init__(self, name: str) -> None:
        self.path = Path(__file__).parent / "messages" / f"{name}.txt"
        self.cases: dict[str, Case] = {}

    def __call__(self, case: Case) -> Case:
        """Add a function (decorator). It gets an empty directory, and returns a message or raises an exception."""
        return self.add(case.__name__.replace("_", " "), case)

    def add(self, name: str, case: Case) -> Case:
        """Add a function under a name."""
        assert name not in self.cases, f"two cases are called {name}"
        self.cases[name] = case
        return case

    def expected(self) -> dict[str, str]:
        """Return the messages in the text file by name of the case."""
        if not self.path.exists():
            return {}
        _, *parts = HEADING.split(self.path.read_text(encoding="utf-8"))
        return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}

    def check(self, name: str, folder: Path) -> None:
        """Compare the message of a case with the text file. The path of `folder` is written as DIR."""
        try:
            message = str(self.cases[name](folder))
        except AssertionError:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        message = message.replace(str(folder.resolve()), "DIR").replace(str(folder), "DIR").strip("\n")
        expected = self.expected()
        if os.environ.get("UPDATE_MESSAGES"):
            expected[name] = message
            self.path.write_text("\n".join(f"== {case}\n{expected[case]}\n" for case in self.cases if case in expected),
                                 encoding="utf-8")
        if message != expected.get(name):
            pytest.fail(f"{self.path.name}, case {name}: the message is now\n{message}\n\nand was\n"
                        f"{expected.get(name)}\n\nIf that is right, run UPDATE_MESSAGES=1 python -m pytest "
                        "tests/messages, and read git diff.")

    def tests(self) -> tuple[Callable[..., None], Callable[[], None]]:
        """Return the two tests of a catalogue module. None is slow: UPDATE_MESSAGES must not leave out a message."""

        @pytest.mark.parametrize("case", list(self.cases))
        def test_message(case: str, tmp_path: Path) -> None:
            self.check(case, tmp_path)

        def test_every_message_belongs_to_a_case() -> None:
            assert list(self.expected()) == list(self.cases)

        return test_message, test_every_message_belongs_to_a_case
