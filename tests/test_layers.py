"""Reading order is import order: a module imports only from those above it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seq2seq

PACKAGE = Path(seq2seq.__file__).parent

CHAPTERS = ["recipe", "tokenizers", "storage", "data", "model", "search", "inference", "translation", "evaluation",
            "training", "analysis", "check", "interop", "cli"]
BESIDE_CHAPTERS = {"errors", "console", "signals", "devices", "compressed_files", "json_reader"}
WITHOUT_TORCH = ["recipe", "tokenizers", "errors", "console", "signals", "compressed_files", "json_reader"]
ALSO_WITHOUT_TORCH = [("storage", "atomic"), ("data", "corpus"), ("data", "tmx"), ("data", "cleaning"),
                      ("data", "number_agreement"), ("data", "pair_quality"), ("data", "language_identification"),
                      ("translation", "text_io"), ("translation", "unfinished_output")]
# Slow to import, or an extra: only ever inside the function that needs them.
INSIDE_FUNCTIONS = {"datasets", "transformers", "ctranslate2", "huggingface_hub", "tensorboard", "pyarrow",
                    "matplotlib", "lingua"}


def modules():
    """Dotted name and syntax tree of every module, the package's name left out."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield parts, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree, also_inside_functions=True):
    """Dotted names that a module imports: `from a import b` gives both a and a.b, either may be the module."""
    nodes = ast.walk(tree) if also_inside_functions else outside_functions(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def outside_functions(node):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from outside_functions(child)


def own_modules(tree):
    """Yield the modules of the package that a module imports: ("search",), ("model", "interface"), …"""
    for name in imports(tree):
        package, *parts = name.split(".")
        if package == "seq2seq" and parts:
            yield tuple(parts)


MODULES = dict(modules())
every_module = pytest.mark.parametrize("parts", list(MODULES), ids=".".join)


def module_of(name):
    """The module that an imported dotted name stands for, or that it is in; None for a name of the package itself."""
    while name:
        for module in (name, (*name, "__init__")):
            if module in MODULES:
                return module
        name = name[:-1]
    return None


def test_every_module_is_in_a_chapter_or_is_one_of_the_six_beside_them():
    assert {parts[0] for parts in MODULES} == {*CHAPTERS, *BESIDE_CHAPTERS, "__main__"}
    assert len(BESIDE_CHAPTERS) <= 6


@every_module
def test_a_chapter_imports_only_from_those_above_it(parts):
    place = CHAPTERS.index(parts[0]) if parts[0] in CHAPTERS else -1
    for imported in own_modules(MODULES[parts]):
        if imported[0] in CHAPTERS and imported[0] != parts[0] and parts != ("__main__",):
            assert CHAPTERS.index(imported[0]) < place, f"{'.'.join(parts)} imports {'.'.join(imported)}"


def test_no_modules_import_each_other_in_a_circle():
    left = {parts: {module for name in own_modules(tree) if (module := module_of(name)) not in (None, parts)}
            for parts, tree in MODULES.items()}
    while free := [parts for parts, imported in left.items() if not imported & left.keys()]:
        for parts in free:
            del left[parts]
    assert not left, f"in circles, or importing from them: {sorted('.'.join(parts) for parts in left)}"


def test_the_readme_lists_the_chapters_in_reading_order():
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^- `(\w+)/`", readme, re.MULTILINE) == CHAPTERS


def test_kernels_are_checked_without_torch():
    for name in ("kernel_interface", "kernel_reference", "kernel_check"):
        assert not any(imported.split(".")[0] == "torch" for imported in imports(MODULES["inference", name]))


def test_search_knows_a_model_by_its_interface_alone():
    for parts, tree in MODULES.items():
        if parts[0] == "search":
            assert {imported for imported in map(module_of, own_modules(tree)) if imported and imported[0] == "model"
                    } <= {("model", "interface")}, parts


def test_layers_never_see_a_recipe():
    for parts, tree in MODULES.items():
        if parts[0] == "model" and parts not in (("model", "__init__"), ("model", "load_model")):
            assert not any(imported[0] == "recipe" for imported in own_modules(tree)), parts


@pytest.mark.parametrize("parts", [parts for parts in MODULES if parts[0] in WITHOUT_TORCH] + ALSO_WITHOUT_TORCH,
                         ids=".".join)
def test_recipes_and_text_need_no_torch(parts):
    assert not any(imported.split(".")[0] == "torch" for imported in imports(MODULES[parts]))
    for imported in map(module_of, own_modules(MODULES[parts])):
        assert imported is None or imported[0] in WITHOUT_TORCH or imported in ALSO_WITHOUT_TORCH, imported


@every_module
def test_what_is_slow_or_optional_is_imported_where_it_is_needed(parts):
    at_once = {name.split(".")[0] for name in imports(MODULES[parts], also_inside_functions=False)}
    assert not at_once & INSIDE_FUNCTIONS


# The public interface


def test_public_names_are_those_of_their_modules_and_of_editors():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    for_editors = {alias.name: node.module for node in typed.body for alias in node.names}
    assert sorted(for_editors) == seq2seq.__all__ == sorted(seq2seq._MODULES)
    for name, module in for_editors.items():
        assert module == f"seq2seq.{seq2seq._MODULES[name]}"
        assert getattr(seq2seq, name) is getattr(sys.modules[module], name) and name in dir(seq2seq)
    with pytest.raises(AttributeError, match="module 'seq2seq' has no attribute 'Translater'"):
        _ = seq2seq.Translater
    with pytest.raises(ImportError, match="cannot import name 'Translater'"):
        exec("from seq2seq import Translater")


@pytest.mark.parametrize(("statement", "without"), [
    ("import seq2seq", {"torch", "pydantic", "sentencepiece", "numpy"}),
    ("from seq2seq import UserError", {"torch", "pydantic", "sentencepiece", "numpy"}),
    ("from seq2seq import load_recipe, Recipe, DecodingOptions", {"torch", "sentencepiece"}),
    ("from seq2seq import corpus_scores", {"torch"}),
    ("from seq2seq import Translator, train; import torch", set()),
    ("from seq2seq import console; from seq2seq.translation import translator", set()),
])
def test_names_are_imported_when_they_are_asked_for(statement, without):
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not without & set(loaded)


def test_the_files_of_an_afternoon_can_be_read_in_one():
    text = (PACKAGE.parent / "docs/code.md").read_text(encoding="utf-8")
    section = text.split("## An afternoon's reading")[1]
    files = re.findall(r"^\| `([a-z_/]+\.py)` \|", section, flags=re.MULTILINE)
    lines = sum((PACKAGE / file).read_text(encoding="utf-8").count("\n") for file in files)
    assert len(files) == 15 and lines <= 3_500


def test_no_file_and_no_chapter_is_too_long_to_be_read():
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in PACKAGE.rglob("*.py")}
    assert max(lines.values()) <= 450
    for chapter in CHAPTERS:
        assert sum(count for path, count in lines.items() if path.parent == PACKAGE / chapter) <= 2_400, chapter
