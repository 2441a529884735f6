#!/bin/sh
# The quick tests on the processors that this one can imitate: PyTorch, oneDNN, MKL and the kernels of seq2seq use older
# instructions, `auto` means bf16 or fp32, and there are one or four threads. One run takes as long as `make test`.
# AMX and other processors' rounding cannot be imitated: run `make test` there.
#
#     tests/processors.sh                          # all runs
#     tests/processors.sh tests/model -k loss      # the arguments are those of pytest
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-.venv/bin/python}
failed=0

# run KERNELS AUTO ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA MKL_ENABLE_INSTRUCTIONS THREADS FLAGS -- arguments of pytest
run() {
    name="kernels $1, auto $2, ATen $3, oneDNN $4, MKL $5, threads $6"
    for flag in $7; do
        if ! grep -qw "$flag" /proc/cpuinfo; then
            echo "CANNOT RUN  $name: this processor has no $flag"
            return
        fi
    done
    export IMITATED_KERNELS="$1" IMITATED_AUTO="$2" ATEN_CPU_CAPABILITY="$3" ONEDNN_MAX_CPU_ISA="$4"
    export MKL_ENABLE_INSTRUCTIONS="$5" OMP_NUM_THREADS="$6"
    shift 8
    if PYTHONPATH="$PWD/tests/processor:$PWD" "$PYTHON" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
    then echo "PASSED      $name"
    else echo "FAILED      $name"; failed=1
    fi
}

run portable fp32 default SSE41            SSE4_2 4 ""                        -- "$@"
run avx2     fp32 avx2    AVX2             AVX2   1 "avx2 fma"                -- "$@"
run avxvnni  fp32 avx2    AVX2_VNNI        AVX2   4 "avx2 fma avx_vnni"       -- "$@"
run avx512   fp32 avx512  AVX512_CORE_VNNI AVX512 4 "avx512bw avx512_vnni"    -- "$@"
run avx512   bf16 avx512  AVX512_CORE_BF16 AVX512 1 "avx512_vnni avx512_bf16" -- "$@"
run amx      bf16 avx512  DEFAULT          AVX512 1 "amx_int8 amx_bf16"       -- "$@"
exit $failed
