"""Reading order is import order: a module imports only from those above it."""

import ast
from pathlib import Path

import pytest

import seq2seq

PACKAGE = Path(seq2seq.__file__).parent

READING_ORDER = [
    "errors", "console", "stopping", "unpacking", "sizes", "recipe", "subword_sampling", "vocabulary", "words",
    "numbering", "tokenizer", "tmx", "corpus", "quality", "side_languages", "cleaning", "textio", "resuming",
    "batching", "machine", "continuations", "model", "loss", "gradients", "optim", "sampling", "search", "constraints",
    "candidate_selection", "coverage", "segments", "faults", "confidence", "minimum_bayes_risk", "decoding",
    "safety_net", "storage", "preparation", "locking", "checkpoint", "averaging", "restoring", "translator",
    "synthetic", "generation", "rescoring", "alignment", "inspection", "views", "workers", "processes", "evaluation",
    "significance", "validation", "progress", "divergence", "run", "verification", "trainer", "parallelism", "check",
    "interop", "options", "commands", "cli", "__main__",
]
MODEL_ORDER = [
    "packing", "interface", "dropout", "embedding", "attention", "copying", "joined", "caches", "transformer",
    "language_model", "rnn", "pointer", "flat", "inference", "kernels", "compiled", "inspection", "__init__",
]
WITHOUT_TORCH = [
    "errors", "stopping", "unpacking", "sizes", "recipe", "corpus", "quality", "side_languages", "cleaning", "tmx",
    "textio", "resuming", "subword_sampling", "vocabulary", "words", "numbering", "tokenizer",
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
    """What a module imports from the package: ("search",), ("model", "interface"), …"""
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


@pytest.mark.parametrize("name", MODEL_ORDER)
def test_models_are_read_from_packing_to_build_model(name):
    place = MODEL_ORDER.index(name)
    for imported in own_modules(MODULES["model", name]):
        if imported[0] == "model" and len(imported) > 1:
            assert imported[1] in MODEL_ORDER[:place], f"model.{name} imports {'.'.join(imported)}"


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
