"""Engines: what runs a trained model fast behind the step interface.

engines: `load_engine`, which chooses one. eager: PyTorch operators, on every device, for every model. int8: whole
encoder and decoder steps in C++ for Transformers on a CPU; kernels.cpp, compiled on first use and checked before it is
used (kernel_interface, kernel_reference, kernel_check, kernel_library).
"""
