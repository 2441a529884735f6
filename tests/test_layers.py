"""Reading order is import order: a chapter imports only from the chapters above it."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import seq2seq

PACKAGE = Path(seq2seq.__file__).parent

# Chapters that train, translate and evaluate, and chapters around them.
CORE = ["recipe", "tokenizers", "storage", "formats", "data", "model", "search", "inference", "translation",
        "evaluation", "training"]
CHAPTERS = [*CORE, "check", "alignment", "interop", "documents", "serve", "cli"]
TOP_LEVEL_MODULES = {"errors", "console", "signals", "devices", "languages", "files", "plug_ins"}
WITHOUT_TORCH = ["recipe", "tokenizers", "formats", "errors", "console", "signals", "languages", "files", "plug_ins"]
ALSO_WITHOUT_TORCH = [("storage", "atomic"), ("storage", "locks"), ("data", "corpus"),
                      ("data", "hub"), ("data", "parallel_text"), ("data", "cleaning"), ("data", "numbers"),
                      ("data", "pair_quality"), ("data", "language_identification"), ("data", "damaged_text"),
                      ("translation", "text_io"), ("translation", "unfinished_output")]
# Packages that are slow to import or optional, so they must be imported inside the functions that need them.
INSIDE_FUNCTIONS = {"datasets", "transformers", "ctranslate2", "huggingface_hub", "tensorboard", "pyarrow",
                    "matplotlib", "lingua", "sacremoses"}


def modules():
    """Yield the parts of the dotted name, without `seq2seq`, and the syntax tree of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield parts, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree, also_inside_functions=True):
    """Yield the dotted names that a module imports; `from a import b` yields a and a.b, because b may be a module.

    With imports inside functions, strings that are names of the package's modules are included, because `import_module`
    and processes that run a module import by such strings.
    """
    nodes = ast.walk(tree) if also_inside_functions else outside_functions(tree)
    for node in nodes:
        if also_inside_functions and isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(
                r"seq2seq(\.\w+)+", node.value):
            yield node.value
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


def module_of(name):
    """Return the module that an imported dotted name refers to or is defined in; None for names of the package itself.
    """
    while name:
        for module in (name, (*name, "__init__")):
            if module in MODULES:
                return module
        name = name[:-1]
    return None


def test_every_module_is_in_a_chapter_or_is_one_of_the_top_level_modules():
    assert {parts[0] for parts in MODULES} == {*CHAPTERS, *TOP_LEVEL_MODULES, "__main__"}


def test_a_chapter_imports_only_from_chapters_above_it():
    for parts, tree in MODULES.items():
        chapter = CHAPTERS.index(parts[0]) if parts[0] in CHAPTERS else -1
        for imported in own_modules(tree):
            if imported[0] not in CHAPTERS or parts == ("__main__",):
                continue
            assert CHAPTERS.index(imported[0]) <= chapter, f"{'.'.join(parts)} imports {'.'.join(imported)}"


def test_the_core_imports_nothing_that_is_around_it():
    around = {(parts, imported[0]) for parts, tree in MODULES.items() if parts[0] in {*CORE, *TOP_LEVEL_MODULES}
              for imported in own_modules(tree) if imported[0] in CHAPTERS and imported[0] not in CORE}
    assert not around


def test_there_are_no_circular_imports():
    remaining = {parts: {module for name in own_modules(tree) if (module := module_of(name)) not in (None, parts)}
                 for parts, tree in MODULES.items()}
    while free := [parts for parts, imported in remaining.items() if not imported & remaining.keys()]:
        for parts in free:
            del remaining[parts]
    assert not remaining, f"in circles, or importing from them: {sorted('.'.join(parts) for parts in remaining)}"


def test_the_page_about_the_code_lists_the_chapters_in_reading_order():
    page = (PACKAGE.parent / "docs/code.md").read_text(encoding="utf-8")
    assert re.findall(r"^- `(\w+)/`", page, re.MULTILINE) == CHAPTERS


def test_search_imports_only_the_interface_of_models():
    for parts, tree in MODULES.items():
        if parts[0] == "search":
            assert {imported for imported in map(module_of, own_modules(tree)) if imported and imported[0] == "model"
                    } <= {("model", "interface")}, parts


def test_layers_do_not_import_recipes():
    for parts, tree in MODULES.items():
        if parts[0] == "model" and parts != ("model", "__init__"):
            assert not any(imported[0] == "recipe" for imported in own_modules(tree)), parts


def test_recipe_and_text_modules_do_not_import_torch():
    for parts in [parts for parts in MODULES if parts[0] in WITHOUT_TORCH] + ALSO_WITHOUT_TORCH:
        assert not any(imported.split(".")[0] == "torch" for imported in imports(MODULES[parts])), parts
        for imported in map(module_of, own_modules(MODULES[parts])):
            assert imported is None or imported[0] in WITHOUT_TORCH or imported in ALSO_WITHOUT_TORCH, (parts, imported)


PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROVIDED = packages_distributions()
# PyTorch's CUDA build, without which no kernel is compiled, installs its version of Triton.
WITH_TORCH = "triton"


def declared(*extras):
    """Names of the packages that are installed with seq2seq and these extras."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    return {canonicalize_name(Requirement(requirement).name) for listed in lists for requirement in listed}


def undeclared(tree, also_inside_functions, names):
    """Names of the packages that a module imports, also by `import_module`, and that are not among `names`."""
    literals = {node.args[0].value for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args
                and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "importorskip")
                and isinstance(node.args[0], ast.Constant)} if also_inside_functions else set()
    for name in {name.split(".")[0] for name in (*imports(tree, also_inside_functions), *literals)}:
        if name not in {*sys.stdlib_module_names, PACKAGE.name, WITH_TORCH} and not names & {
                canonicalize_name(package) for package in PROVIDED.get(name, [name])}:
            yield name


def test_every_package_that_a_chapter_imports_is_declared():
    extras = PROJECT["optional-dependencies"].keys() - {"dev", "bench"}
    for parts, tree in MODULES.items():
        at_once = declared(*extras & {parts[0]})                        # serve has an extra of its name
        assert not [*undeclared(tree, False, at_once)], f"{'.'.join(parts)}: packages that are not always installed"
        assert not [*undeclared(tree, True, declared(*extras))], f"{'.'.join(parts)}: packages that no extra installs"


@pytest.mark.parametrize("code", [
    "import yaml", "def f():\n    import yaml", "from yaml.nodes import Node", "import_module('yaml')",
    "class A:\n    def f(self):\n        importlib.import_module('yaml')"])
def test_a_package_that_is_not_declared_is_found(code):
    assert [*undeclared(ast.parse(code), True, declared("serve", "interop"))] == ["yaml"]


def test_packages_of_the_image_come_from_one_index():
    files = ("Dockerfile", "runtime.txt", "constraints.txt", "Makefile")
    text = "\n".join((PACKAGE.parent / name).read_text(encoding="utf-8") for name in files)
    assert not re.findall(r"--(?:extra-)?index-url|--find-links|(?m:^(?:-f|-i) )|PIP_\w*INDEX_URL=", text)


def test_slow_or_optional_packages_are_imported_inside_functions():
    for parts, tree in MODULES.items():
        at_once = {name.split(".")[0] for name in imports(tree, also_inside_functions=False)}
        assert not at_once & INSIDE_FUNCTIONS, parts


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
    ("from seq2seq import load_recipe, Recipe, DecodingOptions", {"torch", "sentencepiece"}),
    *(pytest.param(statement, without, marks=pytest.mark.slow) for statement, without in (
        ("from seq2seq import UserError", {"torch", "pydantic", "sentencepiece", "numpy"}),
        ("from seq2seq import corpus_scores", {"torch"}),
        ("from seq2seq import Translator, train; import torch", set()),
        ("from seq2seq import console; from seq2seq.translation import translator", set()))),
])
def test_public_names_are_imported_on_first_use(statement, without):
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not without & set(loaded)


def test_the_files_of_an_afternoons_reading_exist():
    text = (PACKAGE.parent / "docs/code.md").read_text(encoding="utf-8")
    section = text.split("## An afternoon's reading")[1]
    files = re.findall(r"^\| `([a-z_/]+\.py)` \|", section, flags=re.MULTILINE)
    assert len(files) > 10 and all((PACKAGE / file).exists() for file in files)
