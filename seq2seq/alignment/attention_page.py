"""Attention maps as a web page: one HTML file that loads nothing from the network."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np

from seq2seq.alignment.shown_maps import COLUMNS, END, NAMES, ROWS, START, AttentionMapSelection, labels
from seq2seq.translation.attention_maps import PairAttention, TokenizedLine

# Weights are stored as 16-bit integers. This integer stands for the weight `largest` (see `_encoded`).
MAX_STORED_WEIGHT = 65535


def page(pair: PairAttention, languages: tuple[str, str], model: str, translated: bool,
         first: AttentionMapSelection) -> str:
    """Return an HTML page with the texts and the attention maps of a sentence pair.

    Args:
        pair: texts and maps. For a language model, the source text is empty, and the page shows only the target.
        languages: codes of source and target, which the browser uses to choose fonts.
        model: name of the model in the heading.
        translated: True if the target is a translation by the model, False if the user supplied it.
        first: the maps that are shown when the page opens.
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
        "origin": "translated by the model" if translated else "supplied by the user",
        "hidden": "" if pair.source.text else " hidden",
        "data": _json(values),
    }
    template = files("seq2seq.alignment").joinpath("attention_page.html").read_text(encoding="utf-8")
    # All fields are replaced in one pass, so that {{data}} in the text of a sentence stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def _side(line: TokenizedLine, language: str) -> dict[str, Any]:
    pieces = [{**asdict(label), "span": [max(0, place) for place in span]}
              for label, span in zip(labels(line), line.spans, strict=True)]
    return {"language": language, "text": line.text, "pieces": pieces}


def _encoded(maps: np.ndarray) -> dict[str, Any]:
    """Return `weights`, little-endian 16-bit integers in Base64, and `largest`, the weight that is stored as
    MAX_STORED_WEIGHT."""
    largest = max(1.0, float(maps.max()))                                       # with ReLU, weights can exceed 1
    stored = (maps / largest * MAX_STORED_WEIGHT).round().astype("<u2")
    return {"largest": largest, "weights": base64.b64encode(stored.tobytes()).decode()}


def _json(values: Any) -> str:
    """Return JSON for an HTML script element. `<`, `>`, `&` and Unicode line separators are escaped, so that no text
    can end the element or a line of the script."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
