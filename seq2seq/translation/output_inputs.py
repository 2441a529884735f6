"""Description of the model and options of a translation, for an unfinished output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq import __version__
from seq2seq.recipe import DecodingSection
from seq2seq.storage.checkpoints import resolve_model_path
from seq2seq.storage.directories import read_metadata
from seq2seq.translation.translator import Translator
from seq2seq.translation.worker_processes import TranslatorPool


def output_inputs(translator: Translator | TranslatorPool, models: Sequence[Path], decoding: DecodingSection,
            ) -> dict[str, Any]:
    """Return the version, precision, kind of device, checksums of the models, and options, by name. The translations
    depend on them."""
    return {"version": __version__, "precision": translator.precision,
            "device": str(translator.device).partition(":")[0],
            "models": [read_metadata(resolve_model_path(path), "bundle", ())["sha256"] for path in models],
            **{f"decoding.{name}": value for name, value in decoding.model_dump(mode="json").items()}}
