"""Load trained models, and decode with engines: fast implementations of the step interface (model/interface.py).

load_model.py: load models from bundles. engines.py: `load_engine`, which selects an engine. eager.py: engine of PyTorch
operators, for every model on every device. static.py: engine for Transformers on a GPU, with static KV caches and CUDA
graphs (cuda_graphs.py). int8.py: engine for Transformers on a CPU, with int8 weights and kernels in C++ (kernels.cpp).
kernel_library.py compiles and checks kernels.cpp on first use. kernel_check.py is the check; it compares the kernels
with kernel_reference.py. kernel_interface.py contains the signatures of the kernels for ctypes.
"""
