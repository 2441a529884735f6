"""Description of the model and options of a translation, for the journal of an unfinished output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq import __version__
from seq2seq.recipe import DecodingSection
from seq2seq.storage.checkpoints import resolve_model_path
from seq2seq.storage.directories import kind_of, read_metadata
from seq2seq.translation.line_translator import LineTranslator
from seq2seq.translation.worker_processes import TranslatorPool


def journal_inputs(translator: LineTranslator | TranslatorPool, models: Sequence[Path], decoding: DecodingSection,
            ) -> dict[str, Any]:
    """Return the version, precision, device, models and options, by name. The translations depend on them."""
    return {"version": __version__, "precision": translator.precision, "device": str(translator.device),
            "models": [_identity(path) for path in models],
            **{f"decoding.{name}": value for name, value in decoding.model_dump(mode="json").items()}}


def _identity(model: Path) -> dict[str, Any]:
    """Return the checksums of a model's files; for an exported model, their sizes and modification times."""
    if kind_of(model) is None and not (model / "best").is_dir():
        return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(model.iterdir())}
    return dict(read_metadata(resolve_model_path(model), "bundle", ())["sha256"])
