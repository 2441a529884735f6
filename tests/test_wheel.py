"""The package installed from a wheel, outside the repository."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seq2seq.inference.kernel_library import INSTRUCTION_SETS, library_path, require_intact

ROOT = Path(__file__).parents[1]
RECIPE = """\
name: mine
languages: {source: sw, target: en}
data:
  train: [{source: train.sw, target: train.en}]
  valid: {source: valid.sw, target: valid.en}
model: {base: small}
"""
PROGRAM = """\
import sys
from pathlib import Path
import seq2seq
from seq2seq.recipe import load_recipe
print(Path(seq2seq.__file__).parent, load_recipe("mine.yaml", check_files=False).model.d_model)
"""


# A C++ compiler that writes a text instead of a library. Like Apple's clang, it does not know OpenMP.
COMPILER = """\
#!/bin/sh
case "$*" in *-mamx*|*-fopenmp*) echo unknown option >&2; exit 1;; esac
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""
LIBRARIES = {library_path(name).name for sets in INSTRUCTION_SETS.values() for name in sets}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of this repository, without compiled files, with the compiler `c++`."""
    pytest.importorskip("setuptools", minversion="77")
    clone = tmp_path_factory.mktemp("clone")
    write_compiler(clone, COMPILER)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("seq2seq", "configs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.so.sha256"))
    return clone


def write_compiler(directory, script):
    (directory / "c++").write_text(script)
    (directory / "c++").chmod(0o755)


@pytest.fixture(scope="module")
def wheel(clone, tmp_path_factory):
    """A wheel of this repository."""
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                    "--wheel-dir", wheels, clone], env=os.environ | {"CXX": str(clone / "c++")}, check=True,
                   capture_output=True, timeout=300)
    wheel, = wheels.iterdir()
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Directory with the contents of the wheel."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def run(installed, directory, *arguments):
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True,
                          timeout=120)


def test_the_wheel_contains_every_file_of_the_package(installed):
    ours = {path.relative_to(ROOT) for path in (ROOT / "seq2seq").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and ".so" not in path.suffixes}
    sizes = {Path("seq2seq") / path.relative_to(ROOT) for path in (ROOT / "configs").iterdir()}
    theirs = {path.relative_to(installed) for path in (installed / "seq2seq").rglob("*")
              if path.is_file() and ".so" not in path.suffixes}
    assert theirs == ours | sizes, "see [tool.setuptools] in pyproject.toml"


def test_the_wheel_contains_a_library_for_each_instruction_set_that_the_compiler_knows(wheel, installed):
    assert wheel.stem.split("-")[2:4] == ["py3", "none"]
    contained = {path.name for path in (installed / "seq2seq/inference").glob("*.so")}
    assert contained == LIBRARIES - {"kernels.amx.so"}
    for name in contained:
        require_intact(installed / "seq2seq/inference" / name)


def test_an_editable_installation_has_the_libraries_with_their_checksums(clone):
    subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace", "--build-temp", "t", "--build-lib", "b"],
                   cwd=clone, env=os.environ | {"CXX": str(clone / "c++")}, check=True, capture_output=True, timeout=60)
    contained = list((clone / "seq2seq/inference").glob("*.so"))
    assert {path.name for path in contained} == LIBRARIES - {"kernels.amx.so"}
    for path in contained:
        require_intact(path)


def test_beside_an_editable_clone_that_is_called_seq2seq_python_imports_the_package(clone, tmp_path):
    """Python takes a directory without `__init__.py` for a package, unless it finds a real one on its search path."""
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, env=os.environ | {"CXX": str(clone / "c++")}, check=True,
                   capture_output=True, timeout=60)
    wheel, = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "seq2seq").symlink_to(clone)
    program = (f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import seq2seq.errors; "
               "print(seq2seq.__file__)")
    for directory in (tmp_path, tmp_path / "place", clone / "configs"):
        done = subprocess.run([sys.executable, "-S", "-c", program], cwd=directory, text=True, capture_output=True,
                              env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, timeout=60)
        assert done.stdout == f"{clone / 'seq2seq' / '__init__.py'}\n", done.stderr


def test_a_clone_on_the_search_path_hides_no_other_package():
    assert [path.parent.name for path in ROOT.glob("*/__init__.py")] == ["seq2seq"]


@pytest.mark.parametrize("script", [
    "#!/bin/sh\nsleep 60 & wait\n",
    '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho half > "$2"; exec sleep 60\n',
    "#!/bin/sh\ntrap '' TERM INT\nwhile :; do sleep 1; done\n"], ids=["a child", "half a library", "no signals"])
def test_a_compiler_that_hangs_ends_the_build_with_a_warning(script, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    write_compiler(tmp_path, script)
    done = subprocess.run([sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path / "built"], cwd=ROOT,
                          text=True, env=os.environ | {"CXX": str(tmp_path / "c++"), "SEQ2SEQ_BUILD_SECONDS": "1"},
                          capture_output=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("was killed after 1 seconds") >= len(LIBRARIES)
    assert not list((tmp_path / "built").rglob("*.so*"))


@pytest.mark.slow
def test_without_a_compiler_no_library_is_built(tmp_path):
    done = subprocess.run([sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path], cwd=ROOT, text=True,
                          env=os.environ | {"PATH": str(tmp_path), "CXX": ""}, capture_output=True, timeout=60)
    assert done.returncode == 0 and not any(tmp_path.iterdir())
    assert "the package is built without kernels" in done.stdout + done.stderr


def test_the_wheel_contains_the_license(installed):
    metadata, = installed.glob("seq2seq_mt-*.dist-info/METADATA")
    assert "License-Expression: MIT\n" in metadata.read_text()
    assert (metadata.parent / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_a_recipe_names_a_size_anywhere(installed, tmp_path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    result = run(installed, tmp_path, "-c", PROGRAM)
    assert result.stdout.split() == [str(installed / "seq2seq"), "256"], result.stderr


def test_the_reference_and_the_schema_are_written_where_a_user_wants_them(installed, tmp_path):
    assert run(installed, tmp_path, "-m", "seq2seq.recipe", "docs").returncode == 0
    for name in ("REFERENCE.md", "recipe.schema.json"):
        assert (tmp_path / "docs" / name).read_text() == (ROOT / "recipes" / name).read_text()
