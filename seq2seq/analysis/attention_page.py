"""A page that shows what a model attends to: one file, which asks the network for nothing."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np

from seq2seq.analysis.attention_maps import Choice, SeenPair, Sentence
from seq2seq.analysis.token_labels import COLUMNS, END, NAMES, ROWS, START, labels

# Weights are stored in so many steps up to the largest.
STEPS = 65535


def page(pair: SeenPair, languages: tuple[str, str], model: str, own: bool, first: Choice) -> str:
    """The page as HTML.

    Args:
        languages: codes of source and target, by which a browser chooses its fonts. A pair without source text is
            that of a language model.
        model: what the page calls the model.
        own: whether the target is the model's own translation.
        first: what is shown when the page opens.
    """
    values = {
        "sides": {"source": _side(pair.source, languages[0]), "target": _side(pair.target, languages[1])},
        "special": {"start": asdict(START), "end": asdict(END)},
        "maps": {kind: {"name": NAMES[kind], "rows": ROWS[kind], "columns": COLUMNS[kind], "shape": maps.shape,
                        **_encoded(maps)} for kind, maps in pair.maps.items()},
        "first": asdict(first),
    }
    fields = {
        "model": html.escape(model),
        "source": html.escape(pair.source.text),
        "target": html.escape(pair.target.text),
        "source_language": html.escape(languages[0]),
        "target_language": html.escape(languages[1]),
        "whose": "translated by the model" if own else "as given",
        "hidden": "" if pair.source.text else " hidden",
        "data": _json(values),
    }
    template = files("seq2seq.analysis").joinpath("attention_page.html").read_text(encoding="utf-8")
    # In one pass, so that nothing in a text is taken for a field.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def _side(sentence: Sentence, language: str) -> dict[str, Any]:
    pieces = [{**asdict(label), "span": span} for label, span in zip(labels(sentence), sentence.spans, strict=True)]
    return {"language": language, "text": sentence.text, "pieces": pieces}


def _encoded(maps: np.ndarray) -> dict[str, Any]:
    # Weights that no softmax makes may be larger than 1.
    largest = max(1.0, float(maps.max()))
    steps = (maps / largest * STEPS).round().astype("<u2")
    return {"largest": largest, "weights": base64.b64encode(steps.tobytes()).decode()}


def _json(values: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or a line of the script."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
