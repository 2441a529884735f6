"""Compile the kernels for the instruction sets of this kind of processor. pyproject.toml contains the rest.

The environment variable CXX selects the compiler. The kernels are optional: a library that the compiler cannot build is
left out, and without a compiler, or on Windows, the package contains no kernels.
"""

import os
import runpy
import shlex
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError

KERNELS = runpy.run_path("seq2seq/inference/kernel_library.py")                 # importing seq2seq would need torch
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


class BuildKernels(build_ext):
    """Build each extension as a library without a Python interface, and without the compiler flags of Python."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = True
        if COMPILER is None or sys.platform == "win32":
            self.extensions = []

    def run(self):
        if not self.extensions:
            self.warn("the package is built without kernels, because there is no C++ compiler for them")
        super().run()

    def build_extension(self, ext):
        library = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(library), exist_ok=True)
        command = [*shlex.split(COMPILER), *ext.sources, "-o", library, *ext.extra_compile_args]
        try:
            self.spawn([*command, "-fopenmp"])
        except ExecError:
            self.spawn(command)                                                 # Apple's clang has no OpenMP

    def get_ext_filename(self, fullname):
        *package, name = fullname.split(".")
        return os.path.join(*package, KERNELS["library_path"](name).name)


class PlatformWheel(bdist_wheel):
    """The libraries depend on the platform but not on the version of Python."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel}, ext_modules=[
    Extension(f"seq2seq.inference.{name}", [str(KERNELS["SOURCE"])], optional=True,
              extra_compile_args=KERNELS["compiler_flags"](precision, needed))
    for precision, sets in KERNELS["INSTRUCTION_SETS"].items() for name, needed in sets.items()])
