"""Export models as Marian models of Hugging Face's `transformers`, and run the exports for the parity check."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seq2seq.errors import FormatError, UserError
from seq2seq.inference.load_model import stored_weights
from seq2seq.interop.exporting import (
    Exportable,
    Parity,
    Tolerance,
    development_lines,
    read_exportable,
    translator_with_exported_decoding,
    write_card,
    write_checked_export,
)
from seq2seq.interop.huggingface_weights import POSITIONS, marian_config, require_marian_support, weights_to_marian
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID, Vocabulary, Words
from seq2seq.tokenizers.vocabulary import as_line
from seq2seq.translation.scoring import PairScore
from seq2seq.translation.translation import Translation

# In fp32, the results of both libraries differ only by rounding, because they add numbers in different orders.
TOLERANCE = Tolerance(1e-3, 0.99, each=True)
BATCH_SIZE = 32
MAX_LENGTH = 512
"""Upper limit for max_length in generation_config.json, in tokens. OPUS-MT models set max_length to this value."""

USAGE = """\
A Marian model for `transformers`. To translate in this directory:

```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer, model = MarianTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
sources = tokenizer(["{token}..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**sources), skip_special_tokens=True))
```
"""


def library() -> Any:
    """Import transformers and return the module."""
    try:
        package = importlib.import_module("transformers")
    except ImportError as error:
        raise UserError("this needs transformers: pip install transformers") from error
    package.utils.logging.disable_progress_bar()
    return package


def export_model(path: Path, output: Path, source: Path | None = None, max_lines: int = 500) -> Parity:
    """Write a model as a Marian model in Hugging Face format, with its tokenizer.

    Args:
        source: file of source lines for the comparison with the original; if None, the recipe's validation set.
        max_lines: maximum number of lines to compare.
    """
    library()
    exportable = read_exportable(path, "huggingface")
    require_marian_support(exportable.section)
    if isinstance(exportable.tokenizers.source, Words):
        raise FormatError("tokenizer.type: words cannot be exported to huggingface: Marian's tokenizer is "
                          "sentencepiece. Export to ctranslate2.")
    lines = development_lines(exportable.recipe, source, max_lines)
    ours = translator_with_exported_decoding(path, exportable)

    def write(directory: Path) -> None:
        write_tokenizer(exportable, directory)
        write_model(exportable, directory)
        token = _token(exportable.tokenizers.source, exportable.recipe.languages.target)
        write_card(directory, path, exportable, "transformers", USAGE.format(token=token),
                   directory / "model.safetensors", "float32")

    return write_checked_export(output, "the export to huggingface", write,
                                lambda directory: MarianTranslator(directory, exportable), ours, lines, TOLERANCE)


def write_model(exportable: Exportable, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors with transformers."""
    package = library()
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    config = package.MarianConfig(
        **marian_config(exportable.section, tokenizers.source.vocab_size, tokenizers.target.vocab_size, start=START_ID,
                    end=END_ID), architectures=["MarianMTModel"])
    model = package.MarianMTModel(config)
    weights = weights_to_marian(stored_weights(exportable.model), exportable.section)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    loaded = {id(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()] if name in weights}
    tensors = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers()])
    # A missing weight is no error if it is tied to a loaded weight.
    unset = [name for name in missing if name not in POSITIONS and id(tensors[name]) not in loaded]
    assert not unset and not unexpected, (unset, unexpected)
    decoding = recipe.decoding
    # In transformers, min_length and max_length include <s>, and max_length also includes </s>.
    max_length = min(recipe.model.max_positions, MAX_LENGTH, (decoding.max_length or MAX_LENGTH) + 2)
    model.generation_config = package.GenerationConfig(
        num_beams=decoding.beam_size, max_length=max_length, min_length=decoding.min_length + 1,
        no_repeat_ngram_size=decoding.no_repeat_ngram, eos_token_id=END_ID, forced_eos_token_id=END_ID,
        pad_token_id=START_ID, decoder_start_token_id=START_ID,
        bad_words_ids=[[index] for index in tokenizers.target.never_generated_ids],
        **({"early_stopping": True, "length_penalty": decoding.length_penalty} if decoding.beam_size > 1 else {}))
    model.save_pretrained(directory)


def write_tokenizer(exportable: Exportable, directory: Path) -> None:
    """Write the sentencepiece models, the vocabularies and tokenizer_config.json."""
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    sides = (tokenizers.source, tokenizers.target)
    for side, name in zip(sides, ("source.spm", "target.spm"), strict=True):
        (directory / name).write_bytes(side.sentencepiece if isinstance(side, MarianVocabulary) else side.model)
    for side, name in zip(sides[: 1 if tokenizers.joint else 2], ("vocab.json", "target_vocab.json"), strict=False):
        (directory / name).write_text(json.dumps(_ids(side), ensure_ascii=False, indent=1), encoding="utf-8")
    unknown, start, end = tokenizers.source.pieces([UNKNOWN_ID, START_ID, END_ID])
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not tokenizers.joint,
              "source_lang": recipe.languages.source, "target_lang": recipe.languages.target,
              **({"directions": [each.pair for each in recipe.directions]} if tokenizers.source.languages else {}),
              "model_max_length": recipe.model.max_positions,
              "unk_token": unknown, "eos_token": end, "pad_token": start}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2), encoding="utf-8")


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(vocabulary.pieces(range(vocabulary.vocab_size)))}


def _token(source: Vocabulary, language: str) -> str:
    """Return the token of a language and a space, which must precede every source; "" if there is no such token."""
    token = source.language_token(language)
    return f"{token} " if token else ""


class MarianTranslator:
    """A Marian model of transformers with the interface `parity.Exported`."""

    def __init__(self, directory: Path, exportable: Exportable) -> None:
        package = library()
        self.tokenizer = package.MarianTokenizer.from_pretrained(directory)
        self.model = package.MarianMTModel.from_pretrained(directory).eval()
        self.source = exportable.tokenizers.source

    @torch.no_grad()
    def translate(self, lines: Sequence[Source], **decoding: Any) -> list[list[Translation]]:
        """See `Translator.translate`. Of `decoding`, only beam_size, length_penalty, max_length, min_length and
        no_repeat_ngram are used. All scores in the result are 0."""
        beam_size = decoding["beam_size"]
        options = {"early_stopping": True, "length_penalty": decoding["length_penalty"]} if beam_size > 1 else {}
        translations: list[list[Translation]] = [[] for _ in lines]
        for indices in _batches(lines):
            output = self.model.generate(**self._encoded([lines[index] for index in indices]), num_beams=beam_size,
                                         do_sample=False, max_length=decoding["max_length"] + 2,
                                         min_length=decoding["min_length"] + 1,
                                         no_repeat_ngram_size=decoding["no_repeat_ngram"], **options)
            texts = self.tokenizer.batch_decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for index, text in zip(indices, texts, strict=True):
                translations[index] = [Translation(text.strip(), 0.0, 0.0, 0)]
        return translations

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[Source, str]]) -> list[PairScore]:
        scores = [PairScore(0.0, 0)] * len(pairs)
        for indices in _batches([source for source, _ in pairs]):
            targets = self.tokenizer(text_target=[pairs[index][1] for index in indices])["input_ids"]
            longest = max(map(len, targets))
            padded = torch.tensor([ids + [START_ID] * (longest - len(ids)) for ids in targets])
            inputs = torch.cat([torch.full((len(indices), 1), START_ID), padded[:, :-1]], dim=1)
            encoded = self._encoded([pairs[index][0] for index in indices])
            logits = self.model(**encoded, decoder_input_ids=inputs).logits    # (sentences, longest, vocab_size)
            log_probabilities = logits.float().log_softmax(-1).gather(2, padded[:, :, None])[:, :, 0]
            for index, row, ids in zip(indices, log_probabilities, targets, strict=True):
                scores[index] = PairScore(row[: len(ids)].sum().item(), len(ids))
        return scores

    def _encoded(self, lines: Sequence[Source]) -> Any:
        texts = [_token(self.source, line.language) + as_line(line) for line in lines]
        return self.tokenizer(texts, return_tensors="pt", padding=True)


def _batches(lines: Sequence[Source]) -> list[list[int]]:
    """Return the line indices in batches, sorted by line length to reduce padding."""
    order = sorted(range(len(lines)), key=lambda index: len(as_line(lines[index])))
    return [order[begin : begin + BATCH_SIZE] for begin in range(0, len(order), BATCH_SIZE)]
