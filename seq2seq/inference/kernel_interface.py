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
# Numbers of memory behind keys that may be read, though not used: as many as a vector holds at most.
BEHIND = 16


class Norm(ctypes.Structure):
    """Layer norm over the last dimension."""

    _fields_ = (("gain", POINTER), ("shift", POINTER), ("epsilon", ctypes.c_float))


class Linear(ctypes.Structure):
    """A product in int8, with its weights in panels."""

    _fields_ = (("panels", POINTER), ("scale", POINTER), ("offset", POINTER), ("bias", POINTER), ("inputs", SIZE),
                ("outputs", SIZE))


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
    """The functions of a compiled library, with their argument types. While one runs, other Python threads do, too."""

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
        self.choose = typed(loaded.choose, POINTER, POINTER, *(SIZE,) * 3, POINTER, SIZE, POINTER, ctypes.c_bool,
                            *(POINTER,) * 3, SIZE)
