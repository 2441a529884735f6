"""The libraries of kernels: each compared with NumPy, also with sanitizers and emulated AMX, and their choice."""

import ctypes
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_check import Checker, check
from kernel_emulator import EmulatedChecker, Emulator

from seq2seq.devices import cpu_flags
from seq2seq.inference import engines, kernel_library
from seq2seq.inference.kernel_library import (
    FP32_PROCESSORS,
    INSTRUCTION_SETS,
    PROCESSORS,
    SOURCE,
    compiler_flags,
    processor_flags,
    usable_libraries,
)

TESTS = Path(__file__).parent
# Processor flags and compiler flags of each library, and of each build with sanitizers.
LIBRARIES = {name: (needed.keys(), compiler_flags(precision, needed))
             for precision, sets in INSTRUCTION_SETS.items() for name, needed in sets.items()}
BUILDS = LIBRARIES | {"emulated AMX": (
    PROCESSORS["x86_64"]["avx2"].keys(),
    [*compiler_flags("int8", PROCESSORS["x86_64"]["avx2"]), "-DEMULATE_TILES", f"-I{TESTS}"])}


@pytest.mark.parametrize(("shapes", "seed"), [(6, 1), pytest.param(200, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("instruction_set", LIBRARIES)
def test_every_function_equals_numpy_and_writes_only_its_outputs(libraries, instruction_set, shapes, seed):
    if instruction_set not in libraries:
        pytest.skip(f"this processor cannot run {instruction_set}, or the package was built without it")
    check(Checker(libraries[instruction_set], seed), shapes)


# Instruction sets of aarch64, each with a processor that qemu emulates and that cannot run the faster sets.
EMULATED = {"i8mm": "max", "dotprod": "neoverse-n1", "portable": "cortex-a72", "portable-fp32": "cortex-a72"}


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", EMULATED)
def test_every_function_equals_numpy_on_an_emulated_arm_processor(instruction_set, tmp_path, monkeypatch):
    compiler, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64"
    if not shutil.which(compiler) or not shutil.which(emulator):
        pytest.skip(f"{compiler} or {emulator} is not installed (on Debian: g++-aarch64-linux-gnu, qemu-user)")
    library, caller = tmp_path / "kernels.so", tmp_path / "kernel_emulator"
    flags = compiler_flags("fp32" if "fp32" in instruction_set else "int8",
                           PROCESSORS["aarch64"].get(instruction_set, {}))
    subprocess.run([compiler, SOURCE, "-o", library, *flags, "-fopenmp"], check=True)
    subprocess.run([compiler, TESTS / "kernel_emulator.cpp", "-o", caller], check=True)
    libc = subprocess.run([compiler, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True).stdout
    command = [emulator, "-cpu", EMULATED[instruction_set], "-L", Path(libc).parents[1], caller]
    check_emulated(Emulator(command, library, tmp_path / "memory"), library, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", [name for name in INSTRUCTION_SETS["int8"] | INSTRUCTION_SETS["fp32"]
                                             if name not in ("amx", "avxvnni")])
def test_every_function_of_a_windows_library_equals_numpy(instruction_set, tmp_path, monkeypatch):
    compiler, emulator = "x86_64-w64-mingw32-g++", "wine"
    if not shutil.which(compiler) or not shutil.which(emulator):
        pytest.skip(f"{compiler} or {emulator} is not installed (on Debian: g++-mingw-w64-x86-64, wine64)")
    needed, flags = LIBRARIES[instruction_set]
    if not needed <= cpu_flags():
        pytest.skip(f"this processor cannot run {instruction_set}")
    library, caller = tmp_path / "kernels.so", tmp_path / "kernel_emulator.exe"
    subprocess.run([compiler, SOURCE, "-o", library, *flags, *kernel_library.MINGW_FLAGS, "-fopenmp"], check=True)
    subprocess.run([compiler, TESTS / "kernel_emulator.cpp", "-o", caller, "-static"], check=True)
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    check_emulated(Emulator([emulator, caller], library, tmp_path / "memory", positional=True), library, monkeypatch)


def check_emulated(emulated, library, monkeypatch):
    """Check a library in an emulator with 25 shapes."""
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda path: emulated)
        checker = EmulatedChecker(emulated, library, seed=4)
    try:
        check(checker, shapes=25)
    finally:
        emulated.close()


def sanitizer_runtime(compiler):
    """Return the flags that link a compiler's sanitizers, and the library that must be preloaded."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    shared = ["-shared-libasan"] if compiler == "clang++" else []
    name = f"libclang_rt.asan-{platform.machine()}.so" if shared else "libasan.so"
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    runtime = Path(found.stdout.strip())
    if not runtime.is_absolute():                                               # the name alone: there is none
        pytest.skip(f"{compiler} has no sanitizers (on Debian: libclang-rt-*-dev)")
    linked = subprocess.run([compiler, "-x", "c++", "-", "-fopenmp", "-o", "/dev/null"], input=b"int main() {}",
                            capture_output=True)
    if linked.returncode:
        pytest.skip(f"{compiler} has no OpenMP (on Debian: libomp-*-dev)")
    return shared, str(runtime)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("name", BUILDS)
def test_sanitizers_find_nothing(compiler, name, tmp_path):
    needed, flags = BUILDS[name]
    if not needed <= cpu_flags():
        pytest.skip(f"this processor cannot run {name}")
    shared, runtime = sanitizer_runtime(compiler)
    library = tmp_path / "kernels.so"
    # With -O1, g++ takes a third of the time that -O3 takes for instrumented code.
    subprocess.run([compiler, SOURCE, "-o", library, *flags, "-O1", "-fopenmp", "-g",
                    "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *shared],
                   check=True)
    checked = subprocess.run(
        [sys.executable, TESTS / "kernel_check.py", library, "25", "3"], capture_output=True, text=True, timeout=600,
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2"})
    assert checked.returncode == 0, checked.stdout[-2000:] + checked.stderr[-4000:]


ZEN_3 = {"avx2", "fma", "f16c", "bmi1"}
CASCADE_LAKE = ZEN_3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_vnni"}


X86 = ["amx", "avx512", "avxvnni", "avx2", "portable"]
GRAVITON_2 = {"asimd", "atomics", "asimddp"}


@pytest.mark.parametrize(("machine", "expected"), [
    ("x86_64", X86), ("AMD64", X86), ("aarch64", ["i8mm", "dotprod", "portable"]), ("arm64", ["portable"]),
    ("riscv64", ["portable"])])
def test_a_package_is_built_with_the_instruction_sets_of_its_kind_of_processor(machine, expected, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    found = runpy.run_path(kernel_library.__file__)["INSTRUCTION_SETS"]
    in_fp32 = ["avx512-fp32", "avx2-fp32", "portable-fp32"] if expected == X86 else ["portable-fp32"]
    assert {precision: list(sets) for precision, sets in found.items()} == {"int8": expected, "fp32": in_fp32}


@pytest.mark.parametrize(("machine", "flags", "expected"), [
    ("x86_64", CASCADE_LAKE | {"amx_tile", "amx_int8", "amx_bf16", "avx_vnni"}, X86),
    ("x86_64", CASCADE_LAKE, ["avx512", "avx2", "portable"]),
    ("x86_64", CASCADE_LAKE - {"avx512_vnni"}, ["avx2", "portable"]),
    ("x86_64", ZEN_3 | {"avx_vnni"}, ["avxvnni", "avx2", "portable"]), ("x86_64", ZEN_3, ["avx2", "portable"]),
    ("aarch64", GRAVITON_2 | {"i8mm", "bf16"}, ["i8mm", "dotprod", "portable"]),
    ("aarch64", GRAVITON_2, ["dotprod", "portable"]), ("aarch64", {"asimd"}, ["portable"]),
    ("x86_64", set(), ["portable"]),
], ids=["sapphire rapids", "cascade lake", "skylake", "alder lake", "zen 3", "graviton 3", "graviton 2", "cortex a72",
        "unknown"])
def test_the_fastest_library_comes_first(machine, flags, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_library, "INSTRUCTION_SETS", {"int8": {**PROCESSORS[machine], "portable": {}}})
    monkeypatch.setattr(kernel_library, "SOURCE", tmp_path / "kernels.cpp")
    assert usable_libraries(flags) == []
    for name in kernel_library.INSTRUCTION_SETS["int8"]:
        kernel_library.library_path(name).touch()
    assert usable_libraries(flags) == [tmp_path / f"kernels.{name}.so" for name in expected]


@pytest.mark.parametrize(("flags", "expected"), [
    (CASCADE_LAKE - {"avx512_vnni"}, ["avx512-fp32", "avx2-fp32", "portable-fp32"]),
    (ZEN_3 | {"avx_vnni"}, ["avx2-fp32", "portable-fp32"]), (set(), ["portable-fp32"]),
], ids=["skylake", "alder lake", "unknown"])
def test_fp32_needs_no_instructions_for_int8(flags, expected, tmp_path, monkeypatch):
    sets = {**FP32_PROCESSORS["x86_64"], "portable-fp32": {}}
    monkeypatch.setattr(kernel_library, "INSTRUCTION_SETS", {"fp32": sets})
    monkeypatch.setattr(kernel_library, "SOURCE", tmp_path / "kernels.cpp")
    for name in sets:
        kernel_library.library_path(name).touch()
    assert usable_libraries(flags, "fp32") == [tmp_path / f"kernels.{name}.so" for name in expected]


def test_the_portable_library_finds_the_flags_that_linux_finds(libraries):
    known = {flag for sets in (PROCESSORS, FP32_PROCESSORS) for needed in sets["x86_64"].values() for flag in needed}
    assert processor_flags() == cpu_flags() & known - {"avx_vnni", "amx_tile", "amx_int8"}


def test_the_script_of_imitated_processors_forces_each_library_for_int8():
    script = (TESTS.parent / "processors.sh").read_text()
    assert set(re.findall(r"^run (\w+) ", script, re.MULTILINE)) == {*PROCESSORS["x86_64"], "portable"}


def test_without_flags_of_linux_the_portable_library_tells_them(libraries, monkeypatch):
    monkeypatch.setattr(engines, "cpu_flags", set)
    found = engines._kernels.__wrapped__("fp32")
    assert found.instruction_set == usable_libraries(cpu_flags(), "fp32")[0].name.split(".")[1]


def test_without_a_portable_library_no_flags_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_library, "SOURCE", tmp_path / "kernels.cpp")
    assert processor_flags() == set()


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The package's libraries and checksums, copied to a directory in which they are looked for."""
    for path in kernel_library.SOURCE.parent.glob("kernels.*.so*"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(kernel_library, "SOURCE", tmp_path / "kernels.cpp")
    engines._kernels.cache_clear()
    yield tmp_path
    engines._kernels.cache_clear()


def truncated(path):
    path.write_bytes(path.read_bytes()[:5000])


def with_a_flipped_bit(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 4
    path.write_bytes(contents)


DAMAGES = {"truncated": truncated, "a flipped bit": with_a_flipped_bit, "empty": lambda path: path.write_bytes(b""),
           "no checksum": lambda path: kernel_library.checksum_path(path).unlink(),
           "another checksum": lambda path: kernel_library.checksum_path(path).write_text("0" * 64),
           "a checksum that is not text": lambda path: kernel_library.checksum_path(path).write_bytes(b"\xff"),
           "another library": lambda path: path.write_bytes(path.with_name("kernels.portable.so").read_bytes())}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_never_loaded_and_the_next_one_is_used_with_a_warning(damage, copies, capsys):
    fastest, *others = usable_libraries(cpu_flags())
    if not others:
        pytest.skip("this processor runs one library only")
    DAMAGES[damage](fastest)
    with pytest.raises(kernel_library.DamagedLibrary, match=re.escape(str(fastest))):
        kernel_library.require_intact(fastest)
    assert isinstance(engines._kernels("int8"), kernel_library.Functions)
    said = " ".join(capsys.readouterr().err.split())
    assert fastest.name in said.replace(" ", "") and "Install the package again" in said


def test_if_all_libraries_are_damaged_the_reference_is_used(copies, capsys):
    for library in usable_libraries(cpu_flags()):
        truncated(library)
    assert "the kernels are damaged" in engines._kernels("int8")
    assert "Install the package again" in " ".join(capsys.readouterr().err.split())
