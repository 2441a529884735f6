"""Signatures of the functions in `kernels.cpp`, for ctypes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

POINTER, SIZE = ctypes.c_void_p, ctypes.c_long
# Names in the order of the enumeration `Activation` in kernels.cpp.
ACTIVATIONS = ("relu", "gelu", "silu")
# PANEL: number of outputs in a panel of int8 weights. GROUP: number of inputs in a group. The values are those in
# kernels.cpp, where the layout is described.
PANEL, GROUP = 64, 4
# Log-probability of an impossible continuation, as in kernels.cpp.
LOG_ZERO = -1e38
# Zero point of quantised inputs in eager.py and in kernels.cpp (where it is 0 on AVX2 without VNNI). VNNI multiplies
# unsigned inputs by signed weights. With VNNI but without AMX, PyTorch 2.13 took 400 times as long for signed inputs.
INPUT_ZERO_POINT = 128
# Number of padding elements after the keys and values of cross-attention. Kernels load whole vectors, so they may read
# the padding, but they do not use it. The longest vectors in kernels.cpp have 16 elements.
KEY_PADDING = 16


class Norm(ctypes.Structure):
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + epsilon) * gain + shift."""

    _fields_ = (("gain", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_float))


class Linear(ctypes.Structure):
    """Linear layer with int8 weights in panels."""

    _fields_ = (("panels", POINTER), ("scale", POINTER), ("offset", POINTER), ("bias", POINTER), ("inputs", SIZE),
                ("outputs", SIZE))


class Layer(ctypes.Structure):
    """Layer of the encoder or decoder.

    norms: the norm after each residual sum. The other fields are linear layers.
    """

    _fields_ = (("query_key_value", Linear), ("output", Linear), ("query", Linear), ("source_output", Linear),
                ("inner", Linear), ("outer", Linear), ("norms", Norm * 3))


class Stack(ctypes.Structure):
    """Encoder or decoder.

    first: norm before the first sublayer of a pre-norm model. last: linear layers that follow `layers`: in an encoder,
    the projections to keys and values of cross-attention, one for each decoder layer; in a decoder, the output layer.
    """

    _fields_ = (("layers", ctypes.POINTER(Layer)), ("number_of_layers", SIZE), ("d_model", SIZE), ("heads", SIZE),
                ("feed_forward", SIZE), ("pre_norm", SIZE), ("activation", SIZE), ("first", Norm),
                ("last", ctypes.POINTER(Linear)), ("number_of_last", SIZE))


class Functions:
    """Functions of a compiled library. While they run, Python's global interpreter lock is released."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))

        def typed(function: Any, *arguments: Any) -> Any:
            function.argtypes, function.restype = arguments, None
            return function

        self.add_and_norm = typed(loaded.add_and_norm, POINTER, POINTER, ctypes.POINTER(Norm), POINTER, POINTER, SIZE,
                                  SIZE)
        self.attend_past = typed(loaded.attend_past, POINTER, SIZE, POINTER, POINTER, SIZE, *(POINTER,) * 2,
                                 *(SIZE,) * 3)
        self.attend_source = typed(loaded.attend_source, POINTER, SIZE, *(POINTER,) * 4, *(SIZE,) * 3)
        self.product = typed(loaded.product, ctypes.POINTER(Linear), POINTER, POINTER, SIZE)
        self.encode = typed(loaded.encode, ctypes.POINTER(Stack), *(POINTER,) * 5, SIZE)
        self.step = typed(loaded.step, ctypes.POINTER(Stack), POINTER, POINTER, ctypes.c_float, POINTER, POINTER, SIZE,
                          POINTER, SIZE, POINTER, POINTER, SIZE, *(POINTER,) * 3, SIZE)
        self.search = typed(loaded.search, ctypes.POINTER(Stack), POINTER, POINTER, ctypes.c_float, POINTER, SIZE,
                            *(POINTER,) * 3, *(SIZE,) * 3, POINTER, *(SIZE,) * 3, *(POINTER,) * 4)
        self.topk = typed(loaded.topk, POINTER, POINTER, *(SIZE,) * 3, POINTER, SIZE, POINTER, ctypes.c_bool,
                          *(POINTER,) * 3, SIZE)
