"""Model card of an export: the card of the original model with other instructions."""

from __future__ import annotations

from pathlib import Path

from seq2seq import console
from seq2seq.errors import CheckpointError
from seq2seq.interop.parity import REPORT, Exportable
from seq2seq.storage.checkpoints import MODEL, bundle_metadata, resolve_model_path
from seq2seq.storage.directories import read_shapes
from seq2seq.storage.model_card import Sizes, Usage, model_card
from seq2seq.tokenizers.context import CONTEXT_SEPARATOR


def export_card(path: Path, exportable: Exportable, library: str, usage: str, weights: Path, number_format: str) -> str:
    """Return the README of an export.

    Args:
        path: the original model, a bundle or a run.
        library: library that runs the export, as `library_name` on the Hugging Face hub.
        usage: instructions to run the export, as Markdown.
        weights: file of the exported weights. number_format: number format of these weights.
    """
    bundle = resolve_model_path(path)
    original = Sizes.of_tensors(read_shapes(bundle / MODEL))
    sizes = Sizes(original.parameters, weights.stat().st_size, (number_format,), original.vocabularies)
    note = (f"Exported by seq2seq, which compared the results of this model with those of the original: see {REPORT}."
            f"{exportable.note and f' {exportable.note}'}")
    if count := exportable.recipe.data.context:
        mark = CONTEXT_SEPARATOR
        note += (f" The model reads up to {count} preceding sentences of the document before each sentence. Write "
                 f"{mark} after each of them: `It rains.{mark} It is wet.` Write {mark} before the first sentence of a "
                 f"document, too: `{mark} It rains.`")
    shown = Usage(library, usage, note, lossless=number_format == "float32")
    try:
        return model_card(exportable.recipe, bundle_metadata(bundle), sizes, shown)
    except CheckpointError as error:
        console.warn(f"{bundle}: the card of the export shows no scores and counts: {error}")
        return model_card(exportable.recipe, {}, sizes, shown)
