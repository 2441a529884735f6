"""Load trained models, and decode with engines: fast implementations of `Stepwise` (model/interface.py).

load_model.py loads models from bundles. engines.py selects an engine (`load_engine`). There are three engines: eager.py
uses PyTorch operators, for every model on every device; static.py uses Triton kernels and CUDA graphs (cuda_graphs.py,
also used in training), for Transformers on a GPU; int8.py uses kernels in C++ (kernels.cpp), for Transformers in int8
or fp32 on a CPU. kernel_library.py lists the instruction sets for which setup.py compiles kernels.cpp, finds the
libraries that a processor can run, and contains the signatures of the kernels for ctypes.
"""
