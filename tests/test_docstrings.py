"""Docstrings say what a thing is or does, in a noun phrase or with a verb, and not "What ..." or "How ..."."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("seq2seq", "tests", "recipes", "benchmarks")
RIDDLE = re.compile(r"\s*(What|How|Whether|Which|Where|Who|Those|That|So many)\b")
PERHAPS = re.compile(rf"[\"']{RIDDLE.pattern}")


def riddles(text):
    """Lines of the docstrings, those under attributes included, that begin with a question word."""
    if not PERHAPS.search(text):                                                # saves parsing most files
        return []
    texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    return [text.lineno for text in texts
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and RIDDLE.match(text.value)]


def test_no_docstring_begins_with_a_question_word():
    found = [f"{path.relative_to(ROOT)}:{line}" for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
             for line in riddles(path.read_text(encoding="utf-8"))]
    assert not found, "begin with a noun or a verb: \"Return True if ...\", \"Number of ...\""


def test_riddles_are_found_wherever_a_docstring_may_stand():
    text = '"""Which module."""\nclass A:\n    """A."""\n    b = 1\n    """\n    How many."""\n'
    assert riddles(text + 'def c():\n    """So many."""\n    return "What is told"\n') == [1, 5, 8]
    assert riddles('"""Whatever may come."""\nname = "What"\n') == []
