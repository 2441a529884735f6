"""Our models as Marian models of Hugging Face's `transformers`, and those behind the interface of our translator."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seq2seq.errors import FormatError, UserError
from seq2seq.interop.marian import POSITIONS, config_of, refuse_what_marian_lacks, weights_to
from seq2seq.interop.parity import (
    REPORT,
    Exportable,
    Parity,
    Tolerance,
    development_lines,
    read_exportable,
    searching_alike,
    write_gated,
)
from seq2seq.model.load_model import stored_weights
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID, Vocabulary, Words
from seq2seq.translation.line_translator import PairScore, Translation

# The same products in another order.
TOLERANCE = Tolerance(1e-3, 0.99, each=True)
BATCH = 32
LONGEST = 512

README = """\
# {name}: {source} to {target}

A Marian model for `transformers`. Exported by seq2seq, which compared it with the model that it was made from:
{report} has the figures.{note} In this directory:

```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer, model = MarianTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
sources = tokenizer(["{token}..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**sources), skip_special_tokens=True))
```
"""


def library() -> Any:
    """Raises UserError where transformers is not installed."""
    try:
        package = importlib.import_module("transformers")
    except ImportError as error:
        raise UserError("this needs transformers: pip install transformers") from error
    package.utils.logging.disable_progress_bar()
    return package


def export_model(path: Path, output: Path, source: Path | None = None, most: int = 500) -> Parity:
    """Write a model as a Marian model in Hugging Face form, with its tokenizer.

    Args:
        source: lines to compare on, at most `most`; if not given, the recipe's validation set.
    Raises:
        FormatError: Marian has no such model, or the exported one does not do what ours does.
    """
    library()
    exportable = read_exportable(path, "huggingface")
    refuse_what_marian_lacks(exportable.recipe.model)
    if isinstance(exportable.tokenizers.source, Words):
        raise FormatError("tokenizer.type: words cannot be exported to huggingface: Marian's tokenizer is "
                          "sentencepiece. Export to ctranslate2.")
    lines = development_lines(exportable.recipe, source, most)
    ours = searching_alike(path, exportable)

    def write(place: Path) -> None:
        write_tokenizer(exportable, place)
        write_model(exportable, place)

    return write_gated(output, "the export to huggingface", write,
                       lambda place: MarianTranslator(place, exportable), ours, lines, TOLERANCE)


def write_model(exportable: Exportable, directory: Path) -> None:
    """config.json, generation_config.json and model.safetensors, as transformers writes them."""
    package = library()
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    config = package.MarianConfig(
        **config_of(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size, start=START_ID,
                    end=END_ID), architectures=["MarianMTModel"])
    model = package.MarianMTModel(config)
    weights = weights_to(stored_weights(exportable.model), recipe.model)
    missing, surplus = model.load_state_dict(weights, strict=False)
    named = {id(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()] if name in weights}
    tensors = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers()])
    lost = [name for name in missing if name not in POSITIONS and id(tensors[name]) not in named]
    assert not lost and not surplus, (lost, surplus)
    decoding = recipe.decoding
    # Their lengths count the start symbol, the longest one </s> too.
    longest = min(recipe.model.max_positions, LONGEST, (decoding.max_length or LONGEST) + 2)
    model.generation_config = package.GenerationConfig(
        num_beams=decoding.beam_size, max_length=longest, min_length=decoding.min_length + 1,
        no_repeat_ngram_size=decoding.no_repeat_ngram, eos_token_id=END_ID, forced_eos_token_id=END_ID,
        pad_token_id=START_ID, decoder_start_token_id=START_ID,
        bad_words_ids=[[index] for index in tokenizers.target.never_generated_ids],
        **({"early_stopping": True, "length_penalty": decoding.length_penalty} if decoding.beam_size > 1 else {}))
    model.save_pretrained(directory)


def write_tokenizer(exportable: Exportable, directory: Path) -> None:
    """Both sentencepiece models, the vocabulary, and what tells transformers which tokenizer it is."""
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    sides = (tokenizers.source, tokenizers.target)
    for side, name in zip(sides, ("source.spm", "target.spm"), strict=True):
        (directory / name).write_bytes(side.sentencepiece if isinstance(side, MarianVocabulary) else side.model)
    for side, name in zip(sides[: 1 if tokenizers.joint else 2], ("vocab.json", "target_vocab.json"), strict=False):
        (directory / name).write_text(json.dumps(_ids(side), ensure_ascii=False, indent=1), encoding="utf-8")
    unknown, start, end = tokenizers.source.pieces([UNKNOWN_ID, START_ID, END_ID])
    about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not tokenizers.joint,
             "source_lang": recipe.languages.source, "target_lang": recipe.languages.target,
             "model_max_length": recipe.model.max_positions,
             "unk_token": unknown, "eos_token": end, "pad_token": start}
    (directory / "tokenizer_config.json").write_text(json.dumps(about, ensure_ascii=False, indent=2), encoding="utf-8")
    (directory / "README.md").write_text(README.format(
        name=recipe.name, source=recipe.languages.source, target=recipe.languages.target, report=REPORT,
        note=exportable.note and f" {exportable.note}", token=_token(exportable)), encoding="utf-8")


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(vocabulary.pieces(range(vocabulary.vocab_size)))}


def _token(exportable: Exportable) -> str:
    """Return the language token, with a space, that every source must begin with; "" without one."""
    source = exportable.tokenizers.source
    return f"{source.language} " if isinstance(source, MarianVocabulary) and source.language else ""


class MarianTranslator:
    """A Marian model of transformers, as `parity.Exported` wants it."""

    def __init__(self, directory: Path, exportable: Exportable) -> None:
        package = library()
        self.tokenizer = package.MarianTokenizer.from_pretrained(directory)
        self.model = package.MarianMTModel.from_pretrained(directory).eval()
        self.token = _token(exportable)

    @torch.no_grad()
    def translate(self, lines: Sequence[str], **decoding: Any) -> list[list[Translation]]:
        """See `Translator.translate`: beam search with beam_size, length_penalty, lengths and no_repeat_ngram."""
        beam = decoding["beam_size"]
        options = {"early_stopping": True, "length_penalty": decoding["length_penalty"]} if beam > 1 else {}
        found: list[list[Translation]] = [[] for _ in lines]
        for places in _batches(lines):
            output = self.model.generate(**self._encoded([lines[place] for place in places]), num_beams=beam,
                                         do_sample=False, max_length=decoding["max_length"] + 2,
                                         min_length=decoding["min_length"] + 1,
                                         no_repeat_ngram_size=decoding["no_repeat_ngram"], **options)
            texts = self.tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for place, text in zip(places, texts, strict=True):
                found[place] = [Translation(text.strip(), 0.0, 0.0, 0)]
        return found

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[str, str]]) -> list[PairScore]:
        """See `Translator.score`."""
        scores = [PairScore(0.0, 0)] * len(pairs)
        for places in _batches([source for source, _ in pairs]):
            targets = self.tokenizer(text_target=[pairs[place][1] for place in places])["input_ids"]
            longest = max(map(len, targets))
            filled = torch.tensor([ids + [START_ID] * (longest - len(ids)) for ids in targets])
            inputs = torch.cat([torch.full((len(places), 1), START_ID), filled[:, :-1]], dim=1)
            encoded = self._encoded([pairs[place][0] for place in places])
            logits = self.model(**encoded, decoder_input_ids=inputs).logits    # (sentences, longest, vocab_size)
            found = logits.float().log_softmax(-1).gather(2, filled[:, :, None])[:, :, 0]
            for place, row, ids in zip(places, found, targets, strict=True):
                scores[place] = PairScore(row[: len(ids)].sum().item(), len(ids))
        return scores

    def _encoded(self, lines: Sequence[str]) -> Any:
        return self.tokenizer([self.token + line for line in lines], return_tensors="pt", padding=True)


def _batches(lines: Sequence[str]) -> list[list[int]]:
    """Places of lines of about the same length."""
    order = sorted(range(len(lines)), key=lambda place: len(lines[place]))
    return [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]
