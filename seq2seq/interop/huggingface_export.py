"""Export models as models of Hugging Face's `transformers`, and run the exports for the parity check.

A model whose vocabulary begins each text with its language becomes an M2M-100 or mBART model, one that is computed like
T5 becomes a T5 model, any other a Marian model.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from seq2seq.errors import FormatError, UserError
from seq2seq.files import parse_json
from seq2seq.inference.load_model import stored_weights
from seq2seq.interop.exporting import (
    Exportable,
    Parity,
    Tolerance,
    development_lines,
    read_exportable,
    translator_with_exported_decoding,
    unsupported_feature,
    write_card,
    write_checked_export,
)
from seq2seq.interop.huggingface_files import SENTENCEPIECE, SENTENCEPIECE_OF_T5, VOCABULARY
from seq2seq.interop.huggingface_vocabulary import M2M100_LANGUAGES
from seq2seq.interop.huggingface_weights import (
    ARCHITECTURES,
    POSITIONS,
    Architecture,
    config_for,
    require_support,
    unsupported_keys,
    weights_to_huggingface,
)
from seq2seq.recipe import Languages, ModelSection, TransformerSection
from seq2seq.recipe.model_section import DOT_PRODUCTS
from seq2seq.tokenizers.fairseq_vocabulary import FairseqVocabulary
from seq2seq.tokenizers.marian_vocabulary import UNUSED, MarianVocabulary
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, SYMBOLS, UNKNOWN_ID, Vocabulary, Words
from seq2seq.tokenizers.vocabulary import as_line, load_processor
from seq2seq.translation.scoring import PairScore
from seq2seq.translation.translation import Translation

# In fp32, the results of both libraries differ only by rounding, because they add numbers in different orders.
TOLERANCE = Tolerance(1e-3, 0.99, each=True)
BATCH_SIZE = 32
MAX_LENGTH = 512
"""Upper limit for max_length in generation_config.json, in tokens. OPUS-MT models set max_length to this value."""

USAGE = """\
A {name} model for `transformers`. To translate in this directory:

```python
from transformers import {model}, {tokenizer}

tokenizer, model = {tokenizer}.from_pretrained("."), {model}.from_pretrained(".")
sources = tokenizer(["{token}..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**sources), skip_special_tokens=True))
```
"""
FAIRSEQ_USAGE = """\
A model for `transformers`, of the architecture {name}. To translate in this directory:

```python
from transformers import {model}, {tokenizer}

tokenizer = {tokenizer}.from_pretrained(".", src_lang="{source}")
model = {model}.from_pretrained(".")
sources = tokenizer(["..."], return_tensors="pt", padding=True)
target = tokenizer.convert_tokens_to_ids("{target}")
found = model.generate(**sources, forced_bos_token_id=target)[:, 2:]    # without </s> and the language
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```
"""
FAIRSEQ_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
"""Pieces with the ids 0 to 3 in M2M-100, NLLB-200 and mBART-50."""
T5_SYMBOLS, T5_EXTRA_IDS = (0, 1, 2), 100
"""Ids of <pad>, </s> and <unk> in T5; number of ids behind the pieces that have names in its tokenizer."""
MBART50_CODE = re.compile("[a-z]{2}_[A-Z]{2}")


def library() -> Any:
    """Import transformers and return the module."""
    try:
        package = importlib.import_module("transformers")
    except ImportError as error:
        raise UserError("this needs transformers: pip install transformers") from error
    package.utils.logging.disable_progress_bar()
    return package


def export_model(path: Path, output: Path, source: Path | None = None, max_lines: int = 500) -> Parity:
    """Write a model in Hugging Face format, with its tokenizer.

    Args:
        source: file of source lines for the comparison with the original; if None, the recipe's validation set.
        max_lines: maximum number of lines to compare.
    """
    library()
    exportable = read_exportable(
        path, "huggingface", unsupported=lambda section: "" if is_t5(section) else unsupported_feature(section))
    require_support(architecture_for(exportable), exportable.section)
    if isinstance(exportable.tokenizers.source, Words):
        raise FormatError("tokenizer.type: words cannot be exported to huggingface: Marian's tokenizer is "
                          "sentencepiece. Export to ctranslate2.")
    lines = development_lines(exportable.recipe, source, max_lines)
    ours = translator_with_exported_decoding(path, exportable)

    def write(directory: Path) -> None:
        write_tokenizer(exportable, directory)
        write_model(exportable, directory)
        write_card(directory, path, exportable, "transformers", _usage(exportable), directory / "model.safetensors",
                   "float32")

    kind = TRANSLATORS[architecture_for(exportable).vocabulary]
    return write_checked_export(output, "the export to huggingface", write,
                                lambda directory: kind(directory, exportable), ours, lines, TOLERANCE)


def is_t5(section: ModelSection) -> bool:
    """Return True for a model that is computed like T5."""
    return isinstance(section, TransformerSection) and section.score in DOT_PRODUCTS and not unsupported_keys(
        ARCHITECTURES["t5"], section)


def architecture_for(exportable: Exportable) -> Architecture:
    """Return the architecture of transformers that a model becomes: of those with its kind of vocabulary, the first
    that has its keys; if there is none, the first of all, whose differences `require_support` reports."""
    kind = "fairseq" if exportable.tokenizers.source.begins_with_own_language else (
        "t5" if is_t5(exportable.section) else "marian")
    possible = [each for each in ARCHITECTURES.values() if each.vocabulary == kind]
    return next((each for each in possible if not unsupported_keys(each, exportable.section)), possible[0])


def _usage(exportable: Exportable) -> str:
    vocabulary, languages = exportable.tokenizers.source, exportable.recipe.languages
    architecture = architecture_for(exportable)
    if not isinstance(vocabulary, FairseqVocabulary):
        return USAGE.format(name=architecture.name, model=architecture.model,
                            tokenizer="T5Tokenizer" if architecture.vocabulary == "t5" else "MarianTokenizer",
                            token=_token(vocabulary, languages.target))
    return FAIRSEQ_USAGE.format(name=architecture.name, model=architecture.model,
                                tokenizer=_tokenizer_class(vocabulary), source=_code(vocabulary, languages.pair[0]),
                                target=_language_name(vocabulary, languages.target))


def write_model(exportable: Exportable, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors with transformers."""
    package = library()
    recipe, tokenizers, architecture = exportable.recipe, exportable.tokenizers, architecture_for(exportable)
    order, symbols = None, {"start": START_ID, "pad": START_ID, "end": END_ID}
    of_tokenizer = {}
    if isinstance(tokenizers.target, FairseqVocabulary):
        order, symbols = fairseq_order(tokenizers.target), {"start": 2, "pad": 1, "end": 2}
        # CTranslate2's converter asks for it: mBART-25 has another start of the decoder.
        of_tokenizer = {"tokenizer_class": _tokenizer_class(tokenizers.target)}
    elif architecture.vocabulary == "t5":
        order = t5_order(tokenizers.target)
        symbols = {"start": order.index(SYMBOLS[exportable.section.decoder_start]), "pad": order.index(START_ID),
                   "end": order.index(END_ID)}
    config = getattr(package, architecture.config)(
        **config_for(architecture, exportable.section, tokenizers.source.vocab_size, tokenizers.target.vocab_size,
                     symbols), **of_tokenizer, architectures=[architecture.model])
    model = getattr(package, architecture.model)(config)
    if exportable.section.tied_embeddings == "inputs":                          # transformers ties the output layer
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    weights = weights_to_huggingface(stored_weights(exportable.model), architecture, exportable.section, order)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    loaded = {id(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()] if name in weights}
    tensors = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers()])
    # A missing weight is no error if it is tied to a loaded weight.
    unset = [name for name in missing if name not in POSITIONS and id(tensors[name]) not in loaded]
    assert not unset and not unexpected, (unset, unexpected)
    decoding = recipe.decoding
    # In transformers, min_length and max_length include <s> and the token of the language, max_length also </s>.
    first = 1 + TRANSLATORS[architecture.vocabulary].given
    max_length = min(recipe.model.max_positions, MAX_LENGTH, first + (decoding.max_length or MAX_LENGTH) + 1)
    model.generation_config = package.GenerationConfig(
        num_beams=decoding.beam_size, max_length=max_length, min_length=first + decoding.min_length,
        no_repeat_ngram_size=decoding.no_repeat_ngram, eos_token_id=symbols["end"], forced_eos_token_id=symbols["end"],
        pad_token_id=symbols["pad"], decoder_start_token_id=symbols["start"],
        bad_words_ids=[[index if order is None else order.index(index)]
                       for index in tokenizers.target.never_generated_ids],
        **({"early_stopping": True, "length_penalty": decoding.length_penalty} if decoding.beam_size > 1 else {}))
    model.save_pretrained(directory)


def write_tokenizer(exportable: Exportable, directory: Path) -> None:
    """Write the sentencepiece models, the vocabularies and tokenizer_config.json."""
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    if isinstance(tokenizers.source, FairseqVocabulary):
        write_fairseq_tokenizer(tokenizers.source, recipe.languages, directory)
        return
    if architecture_for(exportable).vocabulary == "t5":
        write_t5_tokenizer(tokenizers.source, directory)
        return
    sides = (tokenizers.source, tokenizers.target)
    for side, name in zip(sides, ("source.spm", "target.spm"), strict=True):
        (directory / name).write_bytes(side.sentencepiece)
    for side, name in zip(sides[: 1 if tokenizers.joint else 2], ("vocab.json", "target_vocab.json"), strict=False):
        (directory / name).write_text(json.dumps(_ids(side), ensure_ascii=False, indent=1), encoding="utf-8")
    unknown, start, end = tokenizers.source.pieces([UNKNOWN_ID, START_ID, END_ID])
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not tokenizers.joint,
              "source_lang": recipe.languages.source, "target_lang": recipe.languages.target,
              **({"directions": [each.pair for each in recipe.directions]} if tokenizers.source.languages else {}),
              "model_max_length": recipe.model.max_positions,
              "unk_token": unknown, "eos_token": end, "pad_token": start}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2), encoding="utf-8")


def t5_order(vocabulary: Vocabulary) -> list[int]:
    """Return the id in this package of each id in transformers: the pieces of sentencepiece, then unused ids."""
    processor = t5_processor(vocabulary)
    assert isinstance(vocabulary, MarianVocabulary)
    pieces = [vocabulary.ids[piece] for piece in processor.id_to_piece(list(range(processor.vocab_size())))]
    return pieces + [index for index in range(vocabulary.vocab_size) if index not in set(pieces)]


def t5_processor(vocabulary: Vocabulary) -> Any:
    """Return the sentencepiece processor of a vocabulary, whose symbols must have the ids that the T5 tokenizer of
    transformers gives them."""
    if isinstance(vocabulary, MarianVocabulary):
        processor = load_processor(vocabulary.sentencepiece, SENTENCEPIECE_OF_T5)
        if (processor.pad_id(), processor.eos_id(), processor.unk_id()) == T5_SYMBOLS:
            return processor
    raise FormatError("the vocabulary cannot be exported to huggingface: in the T5 tokenizer of transformers, <pad>, "
                      f"</s> and <unk> have the ids {T5_SYMBOLS}, as in models that were imported from T5 or mT5. "
                      "Export to ctranslate2.")


def write_t5_tokenizer(vocabulary: Vocabulary, directory: Path) -> None:
    """Write the files of a T5 tokenizer, with the class of transformers."""
    processor = t5_processor(vocabulary)
    (directory / SENTENCEPIECE_OF_T5).write_bytes(cast(MarianVocabulary, vocabulary).sentencepiece)
    extra = min(T5_EXTRA_IDS, vocabulary.vocab_size - processor.vocab_size())
    library().T5Tokenizer.from_pretrained(directory, extra_ids=extra).save_pretrained(directory)


def fairseq_order(vocabulary: FairseqVocabulary) -> list[int]:
    """Return the id in this package of each id in transformers: four symbols, then the others in the same order, unused
    ids last. CTranslate2's converter counts the pieces of a tokenizer, so their ids must not have gaps."""
    first = [vocabulary.ids[symbol] for symbol in FAIRSEQ_SYMBOLS]
    others = [(name.startswith(UNUSED), index) for name, index in vocabulary.ids.items() if name not in FAIRSEQ_SYMBOLS]
    return first + [index for _, index in sorted(others)]


def write_fairseq_tokenizer(vocabulary: FairseqVocabulary, languages: Languages, directory: Path) -> None:
    """Write the files of an M2M-100, NLLB-200 or mBART-50 tokenizer, with the class of transformers."""
    package = library()
    (directory / SENTENCEPIECE).write_bytes(vocabulary.sentencepiece)
    codes = {vocabulary.language_token(code): _code(vocabulary, code) for code in vocabulary.languages}
    names = vocabulary.pieces(fairseq_order(vocabulary))
    pieces = {name: index for index, name in enumerate(names) if name not in codes and not name.startswith(UNUSED)}
    options: dict[str, Any] = {"src_lang": _code(vocabulary, languages.pair[0]),
                               "tgt_lang": _code(vocabulary, languages.target)}
    kind = _tokenizer_class(vocabulary)
    if kind == "M2M100Tokenizer":
        (directory / VOCABULARY).write_text(json.dumps(pieces, ensure_ascii=False, indent=1), encoding="utf-8")
        options["num_madeup_words"] = sum(name.startswith(UNUSED) for name in names)
        package.M2M100Tokenizer.from_pretrained(directory, **options).save_pretrained(directory)
        return
    # Only the classes of transformers convert the normaliser, and the merges or scores of the pieces.
    read = parse_json(getattr(package, kind).from_pretrained(directory).backend_tokenizer.to_str())
    charsmap = next((each["precompiled_charsmap"] for each in (read["normalizer"] or {}).get("normalizers", [])
                     if each["type"] == "Precompiled"), None)
    options["_spm_precompiled_charsmap"] = charsmap and base64.b64decode(charsmap)
    named = {codes.get(name, name): index for index, name in enumerate(names) if not name.startswith(UNUSED)}
    unused = next((index for index, name in enumerate(names) if name.startswith(UNUSED)), None)
    if unused is not None:                  # else transformers numbers <mask> by the count of pieces, maybe an id
        named.setdefault("<mask>", unused)
    if kind == "NllbTokenizer":
        tokenizer = package.NllbTokenizer(
            vocab=named, merges=list(map(tuple, read["model"].get("merges", []))),
            extra_special_tokens=list(codes.values()), **options)
    else:
        scores = dict(read["model"]["vocab"])
        # Without bos_token, the models that CTranslate2's converter writes cannot be loaded.
        tokenizer = package.MBart50Tokenizer(vocab=[(name, scores.get(name, 0.0)) for name in named], bos_token="<s>",
                                             **options)
    tokenizer.save_pretrained(directory)


def _tokenizer_class(vocabulary: FairseqVocabulary) -> str:
    """Return the class of the tokenizer in transformers. That of M2M-100 always has the same languages, the codes of
    mBART-50 name a country, and that of NLLB-200 takes any language tokens."""
    if all(map(MBART50_CODE.fullmatch, vocabulary.languages)):
        return "MBart50Tokenizer"
    return "M2M100Tokenizer" if list(vocabulary.languages) == M2M100_LANGUAGES.split() else "NllbTokenizer"


def _language_name(vocabulary: FairseqVocabulary, code: str) -> str:
    """Return the token of a language in transformers."""
    name = _code(vocabulary, code)
    return f"__{name}__" if _tokenizer_class(vocabulary) == "M2M100Tokenizer" else name


def _code(vocabulary: FairseqVocabulary, code: str) -> str:
    """Return the form of a language's code that the tokenizer has: `deu_Latn` for `de`. Codes without a script become
    tokens such as `__de__`, unless the tokenizer makes these itself."""
    name = vocabulary.language_token(code).strip("<>")
    return name if "_" in name or _tokenizer_class(vocabulary) == "M2M100Tokenizer" else f"__{name}__"


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(vocabulary.pieces(range(vocabulary.vocab_size)))}


def _token(source: Vocabulary, language: str) -> str:
    """Return the token of a language and a space, which must precede every source; "" if there is no such token."""
    token = source.language_token(language)
    return f"{token} " if token else ""


class MarianTranslator:
    """A Marian model of transformers with the interface `parity.Exported`."""

    start, pad, given = START_ID, START_ID, 0
    """Ids of the decoder's first input and of padding; number of ids with which targets begin without prediction."""

    def __init__(self, directory: Path, exportable: Exportable) -> None:
        architecture = architecture_for(exportable)
        self.tokenizer = self.read_tokenizer(directory, exportable)
        self.model = getattr(library(), architecture.model).from_pretrained(directory).eval()
        self.source = exportable.tokenizers.source

    def read_tokenizer(self, directory: Path, exportable: Exportable) -> Any:
        return library().MarianTokenizer.from_pretrained(directory)

    @torch.no_grad()
    def translate(self, lines: Sequence[Source], **decoding: Any) -> list[list[Translation]]:
        """See `Translator.translate`. Of `decoding`, only beam_size, length_penalty, max_length, min_length and
        no_repeat_ngram are used. All scores in the result are 0."""
        beam_size = decoding["beam_size"]
        options = {"early_stopping": True, "length_penalty": decoding["length_penalty"]} if beam_size > 1 else {}
        translations: list[list[Translation]] = [[] for _ in lines]
        for indices in _batches(lines):
            inputs = self.inputs([lines[index] for index in indices])
            output = self.model.generate(**inputs, num_beams=beam_size, do_sample=False,
                                         max_length=self.given + decoding["max_length"] + 2,
                                         min_length=self.given + decoding["min_length"] + 1,
                                         no_repeat_ngram_size=decoding["no_repeat_ngram"], **options)
            texts = self.tokenizer.batch_decode(output[:, 1 + self.given :], skip_special_tokens=True,
                                                clean_up_tokenization_spaces=False)
            for index, text in zip(indices, texts, strict=True):
                translations[index] = [Translation(text.strip(), 0.0, 0.0, 0)]
        return translations

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[Source, str]]) -> list[PairScore]:
        scores = [PairScore(0.0, 0)] * len(pairs)
        for indices in _batches([source for source, _ in pairs]):
            sources = [pairs[index][0] for index in indices]
            targets = self.targets(sources, [pairs[index][1] for index in indices])
            longest = max(map(len, targets))
            padded = torch.tensor([ids + [self.pad] * (longest - len(ids)) for ids in targets])
            inputs = torch.cat([torch.full((len(indices), 1), self.start), padded[:, :-1]], dim=1)
            logits = self.model(**self.encoded(sources), decoder_input_ids=inputs).logits  # (sentences, longest, ids)
            log_probabilities = logits.float().log_softmax(-1).gather(2, padded[:, :, None])[:, :, 0]
            for index, row, ids in zip(indices, log_probabilities, targets, strict=True):
                scores[index] = PairScore(row[self.given : len(ids)].sum().item(), len(ids))
        return scores

    def inputs(self, lines: Sequence[Source]) -> Any:
        """Return the arguments of `generate` for lines into one language."""
        return self.encoded(lines)

    def targets(self, sources: Sequence[Source], targets: Sequence[str]) -> list[list[int]]:
        """Return the ids of targets in one language, with `</s>`."""
        return cast(list[list[int]], self.tokenizer(text_target=list(targets))["input_ids"])

    def encoded(self, lines: Sequence[Source]) -> Any:
        """Return the arguments of the model for sources in one language."""
        texts = [_token(self.source, line.language) + as_line(line) for line in lines]
        return self.tokenizer(texts, return_tensors="pt", padding=True)


class FairseqTranslator(MarianTranslator):
    """An M2M-100 or mBART model of transformers with the interface `exporting.Exported`."""

    start, pad, given = 2, 1, 1

    def read_tokenizer(self, directory: Path, exportable: Exportable) -> Any:
        self.vocabulary = cast(FairseqVocabulary, exportable.tokenizers.target)
        return getattr(library(), _tokenizer_class(self.vocabulary)).from_pretrained(directory)

    def inputs(self, lines: Sequence[Source]) -> Any:
        token = _language_name(self.vocabulary, lines[0].language)
        return {**self.encoded(lines), "forced_bos_token_id": self.tokenizer.convert_tokens_to_ids(token)}

    def targets(self, sources: Sequence[Source], targets: Sequence[str]) -> list[list[int]]:
        self.tokenizer.tgt_lang = _code(self.vocabulary, sources[0].language)
        return super().targets(sources, targets)

    def encoded(self, lines: Sequence[Source]) -> Any:
        self.tokenizer.src_lang = _code(self.vocabulary, lines[0].source_language)
        return self.tokenizer(list(map(as_line, lines)), return_tensors="pt", padding=True)


class T5Translator(MarianTranslator):
    """A T5 model of transformers with the interface `exporting.Exported`."""

    def read_tokenizer(self, directory: Path, exportable: Exportable) -> Any:
        order = t5_order(exportable.tokenizers.target)
        self.start, self.pad = order.index(SYMBOLS[exportable.section.decoder_start]), order.index(START_ID)
        return library().T5Tokenizer.from_pretrained(directory)


TRANSLATORS = {"marian": MarianTranslator, "fairseq": FairseqTranslator, "t5": T5Translator}
"""Classes that run an export, by the kind of its vocabulary (see `Architecture`)."""


def _batches(lines: Sequence[Source]) -> list[list[int]]:
    """Return the line indices in batches of one direction, sorted by line length to reduce padding."""
    by_direction: dict[tuple[str, str], list[int]] = {}
    for index in sorted(range(len(lines)), key=lambda index: len(as_line(lines[index]))):
        by_direction.setdefault((lines[index].source_language, lines[index].language), []).append(index)
    return [indices[begin : begin + BATCH_SIZE] for indices in by_direction.values()
            for begin in range(0, len(indices), BATCH_SIZE)]
