"""C++ kernels: every function against NumPy with sanitizers and every compiler, and broken builds."""

import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from seq2seq.devices import cpu_flags
from seq2seq.inference import kernel_library
from seq2seq.inference.kernel_library import FLAGS, SOURCE, CompilationError, library, self_check

# Targets of builds, and what a processor needs to run them, by the names that Linux has for it. One has a further flag.
EMULATED = f"native -DEMULATE_TILES -I{Path(__file__).parents[1]}"
TARGETS = {
    "native": set(),
    EMULATED: set(),
    "sapphirerapids": {"amx_tile", "amx_int8", "avx512_vnni", "avx512_fp16", "avx512_bf16", "avx_vnni"},
    "icelake-server": {"avx512_vnni", "avx512_vbmi2", "avx512_bitalg", "vpclmulqdq", "gfni"},
    "haswell -mavxvnni": {"avx2", "fma", "bmi2", "movbe", "avx_vnni"},
    "haswell": {"avx2", "fma", "bmi2", "movbe"},
    "x86-64": set(),
}
SANITIZED_SHAPES = 25


# Builds


def build(compiler, level, target, directory):
    """Build with AddressSanitizer and UndefinedBehaviorSanitizer, and the runtime library that must be preloaded."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    if "native" not in target and os.uname().machine != "x86_64":
        pytest.skip(f"{target} is a target for x86-64")
    shared = ["-shared-libasan"] if "clang" in compiler else []
    name = f"libclang_rt.asan-{os.uname().machine}.so" if shared else "libasan.so"
    runtime = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    if not Path(runtime.stdout.strip()).is_absolute():                          # the name alone: there is none
        pytest.skip(f"{compiler} has no runtime for sanitizers (on Debian: libclang-rt-*-dev)")
    openmp = subprocess.run([compiler, "-fopenmp", "-fsyntax-only", "-x", "c++", "-"], input="#include <omp.h>\n",
                            text=True, capture_output=True)
    if openmp.returncode:
        pytest.skip(f"{compiler} does not find omp.h (on Debian: libomp-*-dev)")
    flags = " ".join(flag for flag in FLAGS if flag != "-O3").replace("native", target).split()
    made = directory / "kernels.so"
    subprocess.run([compiler, str(SOURCE), "-shared", "-o", str(made), *flags, level, "-g", "-fno-omit-frame-pointer",
                    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *shared], check=True)
    return made, runtime.stdout.strip()


EVERY_BUILD = list(product(("g++", "clang++"), ("-O1", "-O2", "-O3"), TARGETS))
QUICK = [("g++", "-O1", "native")]                                      # compiles in half of the time of -O2


@pytest.mark.parametrize(("compiler", "level", "target"), [
    pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in EVERY_BUILD])
def test_every_build_equals_numpy_and_writes_only_its_outputs(compiler, level, target, tmp_path):
    made, runtime = build(compiler, level, target, tmp_path)
    if not TARGETS[target] <= cpu_flags():
        pytest.skip(f"compiled; this processor cannot run a build for {target}")
    done = subprocess.run(
        [sys.executable, "-m", "seq2seq.inference.kernel_check", str(made), "--exact-buffers", "--shapes",
         str(SANITIZED_SHAPES), "--seed", str(EVERY_BUILD.index((compiler, level, target)))],
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2",
             "PYTHONPATH": str(Path(kernel_library.__file__).parents[2])},
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("checked") == SANITIZED_SHAPES


# The self-check

# Of each fault: what is replaced in the source, by what, and what is said then.
SUM = "        const float reference = largest[row];"
SCALE = "            store(__builtin_convertvector(sum - offset, Wide) * input_scale[row] * scale + bias,"
SOFTMAX = "scale[row] = softmax_terms(terms + row * filled, count);"
PAST = "const float scale = softmax_terms(own, keys);"
LANES = "for (uint32_t lanes = above(load(logits + i - first), own[count - 1].total); lanes;"
SLOT = "                slots.push_back(one.slot);"
BROKEN = {
    "one row too many": ("const long tile = std::min(TILE, rows - row);",
                         "const long tile = std::min(TILE, rows - row + rows % 2);",
                         r"writes outside its result|ended by SIG"),
    "one wrong sum": (SCALE, SCALE.replace("+ bias", "* (begin ? 0.99f : 1.0f) + bias"),
                      r"product is off by|search finds other"),
    "a key of the past forgotten": (PAST, PAST.replace("keys", "std::max(1L, keys - 1)"), "attend_past is off by"),
    "a key of the source forgotten": (SOFTMAX, SOFTMAX.replace("count)", "std::max(1L, count - 1))"),
                                      "attend_source is off by"),
    "a word overlooked": (LANES, LANES.replace("total)", "total) & ~1u"), "topk|search"),
    "a slot given twice": (SLOT, SLOT + " slots.push_back(one.slot);", "search finds other|ended by SIG"),
    "an endless loop": (SUM, "        for (volatile long forever = 1; forever;) {}\n" + SUM,
                        "did not end within 3 seconds"),
    "a segmentation fault": (SUM, "        *(volatile int*)(last % 7 ? (int*)&last : nullptr) = 1;\n" + SUM,
                             "ended by SIGSEGV"),
}


QUICK_FAULTS = ("a segmentation fault",)


@pytest.mark.parametrize("fault", [
    pytest.param(fault, marks=() if fault in QUICK_FAULTS else pytest.mark.slow) for fault in BROKEN])
def test_a_broken_build_is_detected_reported_and_not_used(compiled_library, tmp_path, monkeypatch, fault):
    before, after, told = BROKEN[fault]
    source = tmp_path / "kernels.cpp"
    whole = SOURCE.read_text()
    assert whole.count(before) == 1
    source.write_text(whole.replace(before, after))
    monkeypatch.setattr(kernel_library, "SOURCE", source)
    monkeypatch.setattr(kernel_library, "CHECK_SECONDS", 3 if "endless" in fault else 120)
    cache = tmp_path / "cache"
    with pytest.raises(CompilationError, match=rf"fail their self-check: .*({told})"):
        library(cache)
    assert not list(cache.glob("*.so"))
    if "endless" in fault:                                                      # perhaps the machine was busy
        assert not list(cache.glob("*.refused"))
        return
    monkeypatch.setattr(kernel_library, "self_check", lambda *given: pytest.fail("compiled and checked again"))
    with pytest.raises(CompilationError, match="fail their self-check"):
        library(cache)


@pytest.mark.slow
def test_a_good_build_passes_its_check_with_progress(compiled_library):
    steps = []
    assert self_check(compiled_library, lambda amount, news="": steps.append(amount)) is None
    assert sum(steps) > 0


@pytest.mark.slow
def test_processes_that_start_together_compile_once(compiled_library, tmp_path):
    call = ("import sys; from pathlib import Path; from seq2seq.inference import kernel_library as k; real = k._run\n"
            "def counted(compiler, *arguments, **options):\n"
            "    if '-shared' in arguments: print('compiling', flush=True)\n"
            "    return real(compiler, *arguments, **options)\n"
            "k._run = counted; k.library(Path(sys.argv[1]))")
    both = [subprocess.Popen([sys.executable, "-c", call, str(tmp_path / "cache")], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": str(Path(kernel_library.__file__).parents[2])})
            for _ in range(2)]
    assert sorted(process.communicate()[0] for process in both) == ["", "compiling\n"]
    assert [process.returncode for process in both] == [0, 0]


# Compiling


def test_compiled_kernels_are_cached(compiled_library, monkeypatch):
    directory, calls = compiled_library.parent, []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: calls.append(command) or real(command, **options))
    assert library(directory) == compiled_library and [command[1:] for command in calls] == [["--version"]]
    assert {path.suffix for path in directory.iterdir()} == {".so", ".lock"}


@pytest.mark.slow
def test_a_library_that_cannot_be_loaded_is_compiled_again(compiled_library, tmp_path):
    cut_short = tmp_path / compiled_library.name
    cut_short.write_bytes(b"")
    assert library(tmp_path) == cut_short
    assert len(cut_short.read_bytes()) == len(compiled_library.read_bytes())


@pytest.mark.parametrize("text", [b"\x7fELF rubbish", b"#!/bin/sh\nprintf '\\351: error' >&2; exit 1\n"])
def test_a_compiler_that_cannot_be_run_or_read_is_told(tmp_path, monkeypatch, text):
    broken = tmp_path / "c++"
    broken.write_bytes(text)
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilationError, match="cannot be run|cannot compile the kernels"):
        library(tmp_path / "cache")


def test_a_missing_cache_directory_is_reported(compiled_library, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(CompilationError, match="set XDG_CACHE_HOME"):
        library()


def test_a_missing_compiler_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompilationError, match=r"there is no C\+\+ compiler"):
        library(tmp_path)


def test_the_message_of_a_failing_compiler_is_shown(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'x.cpp:3: error: no such thing' >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilationError, match="broken cannot compile the kernels: x.cpp:3: error: no such thing"):
        library(tmp_path / "cache")
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".lock"}


