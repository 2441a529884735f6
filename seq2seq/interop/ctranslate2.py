"""Export models to CTranslate2, and translate with exported models through the `Translator` interface."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch import device as torch_device

from seq2seq.analysis.attention_maps import Aligner
from seq2seq.devices import cpu_flags
from seq2seq.errors import CheckpointError, FormatError, RequestError, UserError
from seq2seq.files.json_reader import NotJson, parse_json
from seq2seq.files.yaml_document import read_yaml, write_yaml
from seq2seq.interop.export_card import export_card
from seq2seq.interop.parity import (
    SUPPORTED_DECODING_KEYS,
    Exportable,
    Parity,
    Tolerance,
    development_lines,
    read_exportable,
    translator_with_exported_decoding,
    write_checked_export,
)
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.transformer import DecoderLayer, FeedForward, Transformer
from seq2seq.recipe import DecodingSection, ModelSection, Recipe, parse_recipe
from seq2seq.recipe.directions import language_token
from seq2seq.search.beam import Hypothesis
from seq2seq.storage.checkpoints import RECIPE, load_bundle, resolve_model_path
from seq2seq.storage.directories import read_file
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID, Tokenizers, Vocabulary
from seq2seq.translation.line_translator import LineTranslator, PairScore
from seq2seq.translation.search_setup import Part, PartTranslation, SearchSetup

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
MODEL_FILE = "model.bin"
CTRANSLATE2_DECODING_KEYS = SUPPORTED_DECODING_KEYS | {"patience"}
# CTranslate2's name of each precision.
PRECISIONS = {"auto": "default", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
VNNI = {"avx512_vnni", "avx_vnni"}
"""CPU flags of the instructions that sum products of int8 numbers in int32."""
INT8_NOTE = """\
On AMD processors without VNNI instructions (before Zen 4), use `compute_type="float32"`. There, int8 has 4 to 7 times
the usual rounding error, and is only 1.2 times as fast as float32 (measured on a Zen 3).
"""


def library() -> Any:
    """Import CTranslate2 and return the module.

    Raises:
        UserError: CTranslate2 is not installed.
    """
    try:
        return importlib.import_module("ctranslate2")
    except ImportError as error:
        raise UserError("this needs CTranslate2: pip install ctranslate2") from error


def compute_type(precision: str) -> str:
    """Return CTranslate2's name of a precision for this machine's CPU.

    On AMD CPUs without VNNI, `auto` is fp32 instead of the format of the stored weights. On a Zen 3, int8 changed the
    log-probability of a token by 0.055 on average for a model of width 128 (with MKL, as on Intel's CPUs, 0.008), and
    by 0.011 for width 256 (0.003). It was only 1.2 times as fast as fp32 (CTranslate2 4.8.5).
    """
    flags = cpu_flags()
    amd = "sse4a" in flags                                              # instructions that only AMD's CPUs have
    return "float32" if precision == "auto" and amd and not VNNI & flags else PRECISIONS[precision]


# Export


def tolerance_of(quantization: str) -> Tolerance:
    """Return the maximum difference that is allowed between a model and its export. For float32, the score limit
    applies to every line. For other formats, some lines differ more, so the limit applies to the mean per token."""
    return Tolerance(1e-3, 0.99, each=True) if quantization == "float32" else Tolerance(0.02, 0.7, each=False)


def export_model(path: Path, output: Path, quantization: str = "float32", source: Path | None = None,
                 max_lines: int = 500) -> Parity:
    """Write a model as a CTranslate2 directory, with tokenizer, recipe and a README that explains how to run it.

    Args:
        quantization: number format of the weights, one of QUANTIZATIONS.
        source: file of source lines for the comparison with the original; if None, the recipe's validation set.
        max_lines: maximum number of lines to compare.
    Raises:
        FormatError: CTranslate2 does not support the model, or the export's results differ from the original's.
    """
    library()
    exportable = read_exportable(path, "ctranslate2", CTRANSLATE2_DECODING_KEYS)
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    lines = development_lines(recipe, source, max_lines)
    ours = translator_with_exported_decoding(path, exportable)

    def write(directory: Path) -> None:
        convert(exportable.model, recipe.model, tokenizers, directory, quantization, exportable.aligner)
        tokenizers.save(directory)
        text = with_exported_decoding(load_bundle(resolve_model_path(path)).recipe_text, exportable)
        (directory / RECIPE).write_text(text, encoding="utf-8", newline="\n")
        card = export_card(path, exportable, "ctranslate2", usage(exportable, quantization), directory / MODEL_FILE,
                           quantization)
        (directory / "README.md").write_text(card, encoding="utf-8")

    return write_checked_export(output, f"the export to ctranslate2 ({quantization})", write,
                                CTranslate2Translator.open, ours, lines, tolerance_of(quantization))


def with_exported_decoding(text: str, exportable: Exportable) -> str:
    """Return the recipe text of the export: the recipe `text` with only the `decoding` keys that are exported."""
    if not exportable.note:
        return text
    recipe = read_yaml(text, RECIPE).value
    decoding = exportable.recipe.decoding.model_dump(exclude_defaults=True, mode="json")
    return f"# Exported to CTranslate2. {exportable.note}\n{write_yaml(recipe | {'decoding': decoding})}"


def convert(model: Transformer, section: ModelSection, tokenizers: Tokenizers, directory: Path,
            quantization: str = "float32", aligner: Aligner | None = None) -> None:
    """Write a CTranslate2 model with the weights of `model`, whose attention scores must be scaled dot products.

    aligner: layer and head (1 or "mean") for CTranslate2's alignments; if None, the mean of the last layer's heads.
    """
    library()
    from ctranslate2.specs import common_spec, transformer_spec

    spec = transformer_spec.TransformerSpec.from_config(
        (section.encoder_layers, section.decoder_layers), section.num_heads, pre_norm=section.norm == "pre",
        activation=getattr(common_spec.Activation, ACTIVATIONS[section.activation]),
        alignment_layer=aligner.layer - 1 if aligner and aligner.layer else -1,
        alignment_heads=1 if aligner and aligner.head == 1 else section.num_heads)
    for side, embedding, positions, layers in (
        (spec.encoder, model.source_embedding, model.source_positions, model.encoder),
        (spec.decoder, model.target_embedding, model.target_positions, model.decoder),
    ):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(embedding)
        side.scale_embeddings = section.scale_embedding
        side.position_encodings.encodings = _array(positions)
        for theirs, layer in zip(side.layer, layers, strict=True):
            ours = cast(DecoderLayer, layer)                    # an encoder layer lacks only the cross-attention
            _self_attention(theirs.self_attention, ours.self_attention, ours.self_residual.norm)
            if isinstance(side, transformer_spec.TransformerDecoderSpec):
                _cross_attention(theirs.attention, ours.cross_attention, ours.cross_residual.norm)
            _feed_forward(theirs.ffn, ours.feed_forward, ours.feed_forward_residual.norm)
    if section.norm == "pre":
        _norm(spec.encoder.layer_norm, model.encoder_norm)
        _norm(spec.decoder.layer_norm, model.decoder_norm)
    spec.decoder.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _array(model.output_bias)
    source, target = (pieces(tokenizer) for tokenizer in (tokenizers.source, tokenizers.target))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token, spec.config.eos_token = target[UNKNOWN_ID], target[END_ID]
    spec.config.bos_token = spec.config.decoder_start_token = target[START_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def pieces(tokenizer: Vocabulary) -> list[str]:
    """Return the pieces of a vocabulary in the order of their ids."""
    return tokenizer.pieces(range(tokenizer.vocab_size))


def _array(weight: Tensor) -> np.ndarray:
    return weight.detach().float().numpy()


def _linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight, spec.bias = _array(layer.weight), _array(layer.bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm)
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _self_attention(spec: Any, layer: SelfAttention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], layer.query_key_value)
    _linear(spec.linear[1], layer.output)
    _norm(spec.layer_norm, norm)


def _cross_attention(spec: Any, layer: CrossAttention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], layer.query)
    _linear(spec.linear[1], layer.key_value)
    _linear(spec.linear[2], layer.output)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, layer: FeedForward, norm: nn.LayerNorm) -> None:
    _linear(spec.linear_0, layer.inner)
    _linear(spec.linear_1, layer.outer)
    _norm(spec.layer_norm, norm)


USAGE = """\
To translate with seq2seq, in this directory:

```bash
seq2seq translate --engine ctranslate2 . < text.{source} > text.{target}
```

To translate without seq2seq, in this directory:

```python
import ctranslate2{imports}

translator = ctranslate2.Translator(".", device="cpu")
{encode}

results = translator.translate_batch(
    [encode(line) for line in ["..."]], beam_size={beam_size}, length_penalty={length_penalty}, disable_unk=True)
for result in results:
    print(decode(result.hypotheses[0]))
```
{note}"""
WITH_SENTENCEPIECE = """\
source, target = (sentencepiece.SentencePieceProcessor(model_file=name) for name in {files})


def encode(line):
    return {token}source.encode({line}, out_type=str)


def decode(pieces):
    return target.decode_pieces(pieces){spaces}"""
WITH_WORDS = """\


def encode(line):
    return ["\\u2581" + word for word in line.split()]


def decode(pieces):
    return " ".join(piece.removeprefix("\\u2581") for piece in pieces)"""


def usage(exportable: Exportable, quantization: str) -> str:
    """Return instructions and code to run an exported model, as Markdown. quantization: format of its weights."""
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    files = list(tokenizers.files())
    marian = isinstance(tokenizers.source, MarianVocabulary)
    encode, imports = WITH_WORDS, ""
    if recipe.tokenizer.type != "words" or marian:
        token = tokenizers.source.language if isinstance(tokenizers.source, MarianVocabulary) else ""
        line = "line"
        if recipe.language_tokens:
            token, line = language_token(recipe.languages.target), '" " + line'      # as in `Vocabulary.encode`
        encode = WITH_SENTENCEPIECE.format(
            files=repr((files[0], files[min(1, len(files) - 1)])), token=f"[{token!r}] + " if token else "", line=line,
            spaces='.replace("\\u2581", " ").strip()' if marian else "")
        imports = "\nimport sentencepiece"
    return USAGE.format(
        source=recipe.languages.source, target=recipe.languages.target, imports=imports, encode=encode,
        beam_size=recipe.decoding.beam_size, length_penalty=recipe.decoding.length_penalty,
        note="\n" + INT8_NOTE if quantization.startswith("int8") else "")


# Translation


@dataclass(frozen=True, eq=False, repr=False)
class CTranslate2Translator(LineTranslator):
    """`LineTranslator` whose search and scoring run in CTranslate2, limited to the options that CTranslate2 supports.

    Scores of translations are higher than those of the original model by about 1e-4, because CTranslate2 excludes
    suppressed tokens from the softmax. A translation without `</s>` is cut at the limit of `SearchSetup.max_lengths`.

    translator: `ctranslate2.Translator`. recipe: recipe of the exported model.
    """

    translator: Any
    recipe: Recipe

    @property
    def precision(self) -> str:
        """Number format of the computation."""
        return str(self.translator.compute_type)

    @property
    def max_positions(self) -> int:
        """Maximum length of a sentence in tokens, `</s>` included."""
        return self.recipe.model.max_positions

    @cached_property
    def suppressed(self) -> list[list[str]]:
        """Pieces that must not occur in a translation, each as a sequence of length 1."""
        return [[piece] for piece in self.tokenizers.target.pieces(self.tokenizers.target.never_generated_ids)]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each piece of the target vocabulary."""
        return {piece: index for index, piece in enumerate(pieces(self.tokenizers.target))}

    @staticmethod
    def open(directory: Path, device: str = "cpu", precision: str = "auto", threads: int | None = None,
             workers: int = 1) -> CTranslate2Translator:
        """Load a directory that `export_model` wrote.

        Args:
            device: cpu, cuda, cuda:1, …, or auto.
            precision: fp32, bf16, fp16, int8 or auto (the format of the stored weights if the device supports it).
            threads: number of threads for each batch; if None, CTranslate2's default. workers: number of batches that
                are translated in parallel.
        Raises:
            CheckpointError: there is no export, or it is damaged, has files of two models, or cannot run on `device`.
            UserError: CTranslate2 is not installed, or `device` is not the name of a device.
        """
        package = library()
        missing = [name for name in (MODEL_FILE, RECIPE) if not (directory / name).exists()]
        if missing:
            raise CheckpointError(f"{directory} is not a model exported to CTranslate2: it has no {missing[0]}. "
                                  "Export one: seq2seq export MODEL --to ctranslate2 --output DIR")
        files = {name: read_file(directory / name) for name in Tokenizers.file_names(directory)}
        try:
            recipe = parse_recipe(read_file(directory / RECIPE).decode(), directory / RECIPE, alone=True)
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{directory / RECIPE} is damaged: {error}. Export the model again.") from error
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda", "auto") or index and not index.isdecimal():
            raise UserError(f"there is no device '{device}'. Devices are cpu, cuda, cuda:1, …, and auto.")
        try:
            on_cpu = kind == "cpu" or kind == "auto" and not package.get_cuda_device_count()
            loaded = package.Translator(str(directory), device=kind, device_index=int(index or 0),
                                        compute_type=compute_type(precision) if on_cpu else PRECISIONS[precision],
                                        inter_threads=workers, intra_threads=threads or 0)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"CTranslate2 cannot load {directory}: {error}") from error
        tokenizers = Tokenizers.from_files(files, str(directory))
        _require_same_pieces(directory, tokenizers)
        if recipe.data.context:
            tokenizers = tokenizers.with_context()
        if recipe.language_tokens:
            tokenizers = tokenizers.with_language_token(language_token(recipe.languages.target))
        return CTranslate2Translator(tokenizers, recipe.languages, recipe.decoding, recipe.max_input_pieces,
                                     torch_device(loaded.device), recipe.task, recipe.data.context, loaded, recipe)

    def search_parts(self, parts: Sequence[Part], setup: SearchSetup,
                     progress: Callable[[np.ndarray], None] = lambda indices: None) -> list[list[PartTranslation]]:
        """See `LineTranslator.search_parts`. Raises RequestError if CTranslate2 lacks a requested option."""
        options = setup.decoding
        self._require_supported(parts, options)
        encoded = self.encode_texts([part.context + part.text for part in parts])
        sources = list(map(self.tokenizers.source.pieces, encoded))
        limits = setup.max_lengths(parts, np.array([len(source) for source in sources]), self.max_positions)
        found: list[list[PartTranslation]] = [[] for _ in parts]
        # All parts of a call have the same max_decoding_length, so a call gets only parts with similar limits.
        lengths = np.array([1 << (limit - 1).bit_length() for limit in limits], np.int64)
        for length in np.unique(lengths):
            indices = np.flatnonzero(lengths == length)
            results = self.translator.translate_batch(
                [sources[index] for index in indices], beam_size=options.beam_size, num_hypotheses=options.n_best,
                patience=options.patience if options.beam_size > 1 else 1,
                length_penalty=options.length_penalty, min_decoding_length=options.min_length,
                max_decoding_length=max(limits[index] for index in indices),
                no_repeat_ngram_size=options.no_repeat_ngram, max_batch_size=options.batch_tokens,
                batch_type="tokens", max_input_length=0, return_scores=True,
                suppress_sequences=self.suppressed)
            for index, result in zip(indices, results, strict=True):
                # A hypothesis without `</s>` is as long as the call's largest limit: cut it at the limit of its part.
                hypotheses = [self._hypothesis(hypothesis[: limits[index] - 1], score, setup)
                              for hypothesis, score in zip(result.hypotheses, result.scores, strict=True)]
                found[index] = list(map(PartTranslation, hypotheses, setup.texts(hypotheses)))
            progress(indices)
        return found

    def score(self, pairs: Sequence[tuple[str, str]], progress: Callable[[int], None] | None = None
              ) -> list[PairScore]:
        """See `LineTranslator.score`."""
        sources, targets = ([side.pieces(ids) for ids in side.encode(lines)] for side, lines in (
            (self.tokenizers.source, [source for source, _ in pairs]),
            (self.tokenizers.target, [target for _, target in pairs])))
        results = self.translator.score_batch(sources, targets, max_batch_size=self.decoding.batch_tokens,
                                              batch_type="tokens", max_input_length=0)
        if progress:
            progress(len(pairs))
        return [PairScore(float(np.sum(result.log_probs)), len(result.log_probs)) for result in results]

    def _hypothesis(self, hypothesis: list[str], score: float, setup: SearchSetup) -> Hypothesis:
        divisor = setup.length_penalty(len(hypothesis) + 1)
        return Hypothesis([self.ids[piece] for piece in hypothesis], score * divisor, score)

    def _require_supported(self, parts: Sequence[Part], options: DecodingSection) -> None:
        unsupported = [key for key, value in options.model_dump().items() if key not in CTRANSLATE2_DECODING_KEYS
                       and value != DecodingSection.model_fields[key].default]
        unsupported += ["prefix"] * any(part.prefix for part in parts)
        unsupported += ["require"] * any(part.required for part in parts)
        if unsupported:
            raise RequestError(f"CTranslate2 does not support {' and '.join(unsupported)}. Leave out these options, or "
                               "leave out --engine ctranslate2.")


def _require_same_pieces(directory: Path, tokenizers: Tokenizers) -> None:
    """Raise CheckpointError unless CTranslate2's vocabularies have the same pieces and ids as the tokenizers."""
    for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
        names = (f"{side}_vocabulary.json", "shared_vocabulary.json")
        path = next((directory / name for name in names if (directory / name).exists()), directory / names[0])
        try:
            vocabulary = parse_json(read_file(path))
        except NotJson as error:
            raise CheckpointError(f"{path} cannot be read: {error}. Export the model again.") from error
        if vocabulary != pieces(tokenizer):
            raise CheckpointError(f"{path} and the tokenizer in the same directory have different pieces, so they "
                                  "belong to different models. Export the model again.")


__all__ = ["QUANTIZATIONS", "CTranslate2Translator", "FormatError", "convert", "export_model", "pieces"]
