"""Reading order is import order: a module imports only from those above it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import seq2seq

PACKAGE = Path(seq2seq.__file__).parent

READING_ORDER = [
    "errors", "json_reader", "console", "stopping", "unpacking", "language_codes", "sizes", "recipe",
    "subword_sampling", "vocabulary", "words", "numbering", "tokenizer", "tmx", "corpus", "numerals", "quality",
    "side_languages", "cleaning", "textio", "resuming", "batching", "machine", "continuations", "model", "inference",
    "loss", "gradients", "optim", "sampling", "search", "constraints", "candidate_selection", "coverage", "segments",
    "faults", "confidence", "minimum_bayes_risk", "decoding", "safety_net", "checksums", "storage", "checkpoint",
    "tokenizer_files", "preparation", "locking", "averaging", "restoring", "translator", "synthetic", "generation",
    "rescoring", "alignment", "inspection", "views", "workers", "processes", "evaluation", "significance",
    "validation", "progress", "divergence", "run", "verification", "trainer", "parallelism", "check", "interop",
    "options", "commands", "cli", "__main__",
]
MODEL_ORDER = [
    "packing", "interface", "dropout", "embedding", "attention", "copying", "joined", "caches", "transformer",
    "language_model", "rnn", "pointer", "inspection", "__init__",
]
INFERENCE_ORDER = ["eager", "kernel_interface", "kernel_check", "kernel_library", "int8", "engines"]
WITHOUT_TORCH = [
    "errors", "json_reader", "stopping", "unpacking", "language_codes", "sizes", "recipe", "corpus", "numerals",
    "quality", "side_languages", "cleaning", "tmx", "textio", "resuming", "subword_sampling", "vocabulary", "words",
    "numbering", "tokenizer",
]
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


@every_module
def test_a_module_imports_only_from_those_above_it(parts):
    assert parts[0] in READING_ORDER, f"{parts[0]} has no place in the reading order"
    place = READING_ORDER.index(parts[0])
    for imported in own_modules(MODULES[parts]):
        if imported[0] == parts[0] or imported[0] not in READING_ORDER:         # its own package, or a name
            continue
        assert READING_ORDER.index(imported[0]) < place, f"{'.'.join(parts)} imports {'.'.join(imported)}"


@pytest.mark.parametrize(("chapter", "order", "name"), [
    *(("model", MODEL_ORDER, name) for name in MODEL_ORDER),
    *(("inference", INFERENCE_ORDER, name) for name in INFERENCE_ORDER)])
def test_models_and_engines_are_read_in_the_order_of_their_imports(chapter, order, name):
    place = order.index(name)
    for imported in own_modules(MODULES[chapter, name]):
        if imported[0] == chapter and len(imported) > 1:
            assert imported[1] in order[:place], f"{chapter}.{name} imports {'.'.join(imported)}"


def test_kernels_are_checked_without_torch():
    for name in ("kernel_interface", "kernel_check"):
        assert not any(imported.split(".")[0] == "torch" for imported in imports(MODULES["inference", name]))


def test_search_knows_a_model_by_its_interface_alone():
    known = {parts[:2] for parts in own_modules(MODULES["search",]) if parts[0] != "continuations"}
    assert known == {("model",), ("model", "interface"), ("tokenizer",), ("tokenizer", "END_ID"),
                     ("tokenizer", "START_ID")} - {("model",)}


def test_layers_never_see_a_recipe():
    for parts, tree in MODULES.items():
        if parts[0] == "model" and parts != ("model", "__init__"):
            assert not any(imported[0] == "recipe" for imported in own_modules(tree)), parts


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_recipes_and_text_need_no_torch(name):
    for parts, tree in MODULES.items():
        if parts[0] == name:
            assert not any(imported.split(".")[0] == "torch" for imported in imports(tree)), parts
            assert {imported[0] for imported in own_modules(tree)} & set(READING_ORDER) <= {*WITHOUT_TORCH, "console"}


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
    ("from seq2seq import console, translator", set()),
])
def test_names_are_imported_when_they_are_asked_for(statement, without):
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not without & set(loaded)
