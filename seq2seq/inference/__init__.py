"""Loading of trained models, and engines: fast implementations of the step interface for them.

load_model: models from bundles. engines: `load_engine`, which selects an engine. eager: PyTorch operators, for every
model on every device. static: a search with static KV caches and CUDA graphs (cuda_graphs) for Transformers on a GPU.
int8: encoder and decoder steps in C++ for Transformers on a CPU. kernels.cpp is compiled and checked on first use
(kernel_interface, kernel_reference, kernel_check, kernel_library).
"""
