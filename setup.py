"""Compile the kernels for the instruction sets of this kind of processor. pyproject.toml contains the rest.

The environment variable CXX selects the compiler, g++ or clang++ (on Windows, those of MinGW; Microsoft's is not
supported). A cross-compiler also needs _PYTHON_HOST_PLATFORM, as for packages with extensions: linux-aarch64, for
example. The kernels are optional: a library that the compiler cannot build within SEQ2SEQ_BUILD_SECONDS (600) is left
out with a warning, and without a compiler the package contains no kernels. The sha256 of each library stands in a file
beside it, and is compared when the library is loaded.
"""

import hashlib
import os
import platform
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import ExecError

KERNELS = runpy.run_path("seq2seq/inference/kernel_library.py")                 # importing seq2seq would need torch
MAX_SECONDS = int(os.environ.get("SEQ2SEQ_BUILD_SECONDS", "600"))
COMPILER = shlex.split(os.environ.get("CXX", ""), posix=os.name == "posix") or [
    found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))][:1]
MACHINE = os.environ.get("_PYTHON_HOST_PLATFORM", platform.machine()).rpartition("-")[2]


def compile_within_limit(command):
    """Run a compiler, and return its exit status. A compiler that hangs must not hold the installation for ever.

    Raises:
        ExecError: it has run for MAX_SECONDS. It is killed together with the processes that it has started.
    """
    with subprocess.Popen(command, start_new_session=True) as compiler:
        try:
            return compiler.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(compiler.pid, signal.SIGKILL) if os.name == "posix" else compiler.kill()
            raise ExecError(f"{shlex.join(command)} was killed after {MAX_SECONDS} seconds") from None


class BuildKernels(build_ext):
    """Build each extension as a library without a Python interface, and without the compiler flags of Python."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = True
        if not COMPILER:
            self.extensions = []

    def run(self):
        if not self.extensions:
            self.warn("the package is built without kernels, because there is no C++ compiler for them")
        super().run()

    def build_extension(self, ext):
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        for old in (library, KERNELS["checksum_path"](library)):
            old.unlink(missing_ok=True)
        command = [*COMPILER, *ext.sources, "-o", str(library), *ext.extra_compile_args]
        if sys.platform == "win32":
            command += KERNELS["MINGW_FLAGS"]
        try:
            if compile_within_limit([*command, "-fopenmp"]):
                if compile_within_limit(command):
                    raise ExecError(f"{COMPILER[0]} failed")
                # Apple's clang has no OpenMP.
                self.warn(f"{library.name} will use one thread, because {COMPILER[0]} has no OpenMP")
        except ExecError:
            library.unlink(missing_ok=True)
            raise
        checksum = hashlib.sha256(library.read_bytes()).hexdigest()
        KERNELS["checksum_path"](library).write_text(f"{checksum}\n", encoding="ascii")

    def copy_extensions_to_source(self):
        """Copy the libraries, in an editable installation, with their checksums."""
        super().copy_extensions_to_source()
        for ext in self.extensions:
            built = KERNELS["checksum_path"](Path(self.build_lib, self.get_ext_filename(ext.name)))
            copied = KERNELS["checksum_path"](KERNELS["library_path"](ext.name.rpartition(".")[2]))
            copied.unlink(missing_ok=True)
            if built.exists():
                self.copy_file(str(built), str(copied))

    def get_ext_filename(self, fullname):
        *package, name = fullname.split(".")
        return os.path.join(*package, KERNELS["library_path"](name).name)


class BuildWithConfigs(build_py):
    """Add the model sizes, which are beside the package in a clone and in an editable installation."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("configs", os.path.join(self.build_lib, "seq2seq", "configs"))


class PlatformWheel(bdist_wheel):
    """The libraries depend on the platform but not on the version of Python."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_ext": BuildKernels, "build_py": BuildWithConfigs, "bdist_wheel": PlatformWheel}, ext_modules=[
    Extension(f"seq2seq.inference.{name}", [str(KERNELS["SOURCE"])], optional=True,
              extra_compile_args=KERNELS["compiler_flags"](precision, needed))
    for precision, sets in KERNELS["instruction_sets"](MACHINE).items() for name, needed in sets.items()])
