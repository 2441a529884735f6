"""Signatures of the functions in `kernels.cpp`, for ctypes. Imports no torch, so that the self-check starts quickly."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

POINTER, SIZE = ctypes.c_void_p, ctypes.c_long
# In the order of `Activation` in the source.
ACTIVATIONS = ("relu", "gelu", "silu")
# As in the source: outputs of a panel of int8 weights, and inputs that are multiplied together.
PANEL, GROUP = 64, 4
# Logarithm of an impossible continuation, as in the source.
LEAST = -1e38
# Level that stands for 0 among the unsigned int8 levels of inputs: VNNI multiplies unsigned by signed bytes.
ZERO_LEVEL = 128


class Norm(ctypes.Structure):
    """Layer norm over the last dimension."""

    _fields_ = (("gain", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_float))


class Linear(ctypes.Structure):
    """A product with `weight` in fp32; with `levels` in int8; or with `panels` of them, and inputs in int8 too."""

    _fields_ = (("weight", POINTER), ("levels", POINTER), ("panels", POINTER), ("scale", POINTER), ("offset", POINTER),
                ("bias", POINTER), ("inputs", SIZE), ("outputs", SIZE))


class Layer(ctypes.Structure):
    """A layer of the encoder or decoder: its products, and the norms that follow its sums."""

    _fields_ = (("query_key_value", Linear), ("output", Linear), ("query", Linear), ("source_output", Linear),
                ("inner", Linear), ("outer", Linear), ("norms", Norm * 3))


class Stack(ctypes.Structure):
    """Encoder or decoder. first: the norm before the first sublayer of a pre-norm model. last: the products after the
    last layer, for the memory of each decoder layer or for the vocabulary."""

    _fields_ = (("layers", ctypes.POINTER(Layer)), ("number_of_layers", SIZE), ("d_model", SIZE), ("heads", SIZE),
                ("feed_forward", SIZE), ("pre_norm", SIZE), ("activation", SIZE), ("first", Norm),
                ("last", ctypes.POINTER(Linear)), ("number_of_last", SIZE))


class Functions:
    """The functions of a compiled library for one type of numbers, `fp32` or `bf16`, with their argument types."""

    def __init__(self, library: Path, name: str) -> None:
        loaded = ctypes.CDLL(str(library))

        def typed(function: Any, *arguments: Any) -> Any:
            function.argtypes, function.restype = arguments, None
            return function

        self.add_and_norm = typed(loaded[f"add_and_norm_{name}"], POINTER, POINTER, ctypes.POINTER(Norm), POINTER,
                                  POINTER, SIZE, SIZE)
        self.attend = typed(loaded[f"attend_{name}"], POINTER, SIZE, POINTER, SIZE, *(POINTER,) * 3, SIZE, POINTER,
                            SIZE, SIZE, SIZE)
        self.product = typed(loaded[f"product_{name}"], ctypes.POINTER(Linear), POINTER, POINTER, SIZE)
        self.encode = typed(loaded[f"encode_{name}"], ctypes.POINTER(Stack), *(POINTER,) * 5, SIZE)
        self.step = typed(loaded[f"step_{name}"], ctypes.POINTER(Stack), POINTER, POINTER, ctypes.c_float, POINTER,
                          POINTER, SIZE, SIZE, POINTER, SIZE, *(POINTER,) * 4, SIZE)
        self.choose = typed(loaded.choose, POINTER, POINTER, *(SIZE,) * 3, POINTER, SIZE, POINTER, ctypes.c_bool,
                            *(POINTER,) * 3, SIZE)
        self.multiplies_bytes = bool(loaded.multiplies_bytes())
