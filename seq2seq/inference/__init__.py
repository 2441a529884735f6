"""Loading of trained models, and engines: fast implementations of `model.interface.Stepwise` for these models.

load_model.py: models from bundles. engines.py: `load_engine`, which selects an engine. eager.py: engine of PyTorch
operators, for every model on every device. static.py: engine for Transformers on a GPU, with static KV caches and CUDA
graphs (cuda_graphs.py). int8.py: engine for Transformers on a CPU, with int8 weights and kernels in C++ (kernels.cpp).
kernel_library.py compiles and checks kernels.cpp on first use. kernel_check.py and kernel_reference.py contain the
check, and kernel_interface.py the signatures of the functions in kernels.cpp.
"""
