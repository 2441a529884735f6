"""The Chinese README says the same as the English one: commands, figures and links are compared. The files
beside them name the version of the package."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import seq2seq

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = (ROOT / name for name in ("README.md", "README.zh-CN.md"))


def commands(text):
    """Return the code blocks without their comments."""
    blocks = re.findall(r"```(?:yaml)?\n(.*?)```", text, flags=re.DOTALL)
    return [[line.partition("#")[0].rstrip() for line in block.splitlines()] for block in blocks]


def figures(text):
    """Return the numbers outside of code for each line of a table and, sorted, for each paragraph: the order of words,
    and so of the numbers in a sentence, differs between the languages."""
    prose = re.sub(r"```.*?```|`[^`]*`|\([^()]*\)|\uff08[^\uff08\uff09]*\uff09", "", text, flags=re.DOTALL)
    blocks = re.split(r"\n\n|\n(?=[|-])", prose)
    found = [(block, re.findall(r"\d[\d.,]*\d|\d", block)) for block in blocks]
    return [numbers if "|" in block else sorted(numbers) for block, numbers in found if numbers]


def links(text):
    return sorted(set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh-CN.md"})


def names(text):
    """Return the headings' levels, and the code in the text."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    levels = [len(found) for found in re.findall(r"^(#+) ", prose, flags=re.MULTILINE)]
    return levels, sorted(re.findall(r"`([^`]+)`", prose))


@pytest.mark.parametrize("part", [commands, figures, links, names])
def test_both_readmes_have_the_same(part):
    assert part(CHINESE.read_text(encoding="utf-8")) == part(ENGLISH.read_text(encoding="utf-8"))


def test_the_citation_and_the_changelog_name_the_version():
    assert YAML(typ="safe").load(ROOT / "CITATION.cff")["version"] == seq2seq.__version__
    assert seq2seq.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
