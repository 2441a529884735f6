"""Docstrings begin with a verb or a noun phrase instead of a question word such as "What" or "How"."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("seq2seq", "tests", "recipes", "benchmarks")
QUESTION_WORD = re.compile(r"\s*(What|How|Whether|Which|Where|Who|Those|That|So many)\b")
QUOTED_QUESTION_WORD = re.compile(rf"[\"']{QUESTION_WORD.pattern}")


def questions(text):
    """Return the lines of docstrings, including those of attributes, that begin with a question word."""
    if not QUOTED_QUESTION_WORD.search(text):                                   # avoids parsing most files
        return []
    texts = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    return [text.lineno for text in texts
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and QUESTION_WORD.match(text.value)]


def test_no_docstring_begins_with_a_question_word():
    found = [f"{path.relative_to(ROOT)}:{line}" for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
             for line in questions(path.read_text(encoding="utf-8"))]
    assert not found, "begin with a noun or a verb: \"Return True if ...\", \"Number of ...\""


def test_question_words_are_found_in_every_kind_of_docstring():
    text = '"""Which module."""\nclass A:\n    """A."""\n    b = 1\n    """\n    How many."""\n'
    assert questions(text + 'def c():\n    """So many."""\n    return "What is told"\n') == [1, 5, 8]
    assert questions('"""Whatever may come."""\nname = "What"\n') == []
