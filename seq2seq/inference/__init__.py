"""Engines: fast computation of trained models behind the step interface.

eager: PyTorch operators. flat: its decoder step without module calls. kernel_interface, kernel_check, kernel_library:
functions in C++ (kernels.cpp), compiled on first use and checked before they are used. kernels, compiled: these
functions on tensors, and a Transformer that translates with them.
"""
