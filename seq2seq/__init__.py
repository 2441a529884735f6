"""seq2seq: train translation models from recipes, translate text, evaluate with BLEU."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seq2seq.alignment.attention_picture import attention_map
    from seq2seq.alignment.shown_maps import attention_weights
    from seq2seq.documents.translate_document import translate_document
    from seq2seq.errors import UserError
    from seq2seq.evaluation.learning_curves import plot_curves
    from seq2seq.evaluation.rescoring import rescore
    from seq2seq.evaluation.scores import corpus_scores, evaluate_tests
    from seq2seq.evaluation.significance import compare
    from seq2seq.recipe import DecodingOptions, Recipe, load_recipe
    from seq2seq.tokenizers.source import Source
    from seq2seq.training.run import train
    from seq2seq.translation.attention_maps import PairAttention
    from seq2seq.translation.generation import generate
    from seq2seq.translation.scoring import PairScore, pair_scores
    from seq2seq.translation.translation import Translation
    from seq2seq.translation.translator import Translator
    from seq2seq.translation.worker_processes import TranslatorPool

__version__ = "0.1.0"

# OpenMP threads wait for each other after every operation. If they spin for long, any other busy process slows torch
# down: a training step on 2 cores took 6 times as long. If they sleep immediately, torch is a quarter slower, because
# waking them takes time. With these settings, the threads of GNU's OpenMP spin for a few microseconds, then sleep.
# OpenMP reads the settings only once, when torch or the kernels are loaded.
if sys.platform == "linux":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Module of each public name. The modules are imported on first use, because importing torch takes seconds, and neither
# recipes nor the help of the command line need torch.
_MODULES = {
    "DecodingOptions": "recipe", "PairAttention": "translation.attention_maps",
    "PairScore": "translation.scoring", "Recipe": "recipe", "Source": "tokenizers.source",
    "Translation": "translation.translation", "Translator": "translation.translator",
    "TranslatorPool": "translation.worker_processes", "UserError": "errors",
    "attention_map": "alignment.attention_picture",
    "attention_weights": "alignment.shown_maps", "compare": "evaluation.significance",
    "corpus_scores": "evaluation.scores", "evaluate_tests": "evaluation.scores", "generate": "translation.generation",
    "load_recipe": "recipe", "pair_scores": "translation.scoring", "plot_curves": "evaluation.learning_curves",
    "rescore": "evaluation.rescoring", "train": "training.run",
    "translate_document": "documents.translate_document",
}
__all__ = ["DecodingOptions", "PairAttention", "PairScore", "Recipe", "Source", "Translation", "Translator",
           "TranslatorPool", "UserError", "attention_map", "attention_weights", "compare", "corpus_scores",
           "evaluate_tests", "generate", "load_recipe", "pair_scores", "plot_curves", "rescore", "train",
           "translate_document"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
