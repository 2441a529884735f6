"""Export of models to CTranslate2."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from seq2seq.data.alignment_links import AlignmentSettings
from seq2seq.devices import cpu_flags
from seq2seq.errors import FormatError, UserError
from seq2seq.interop.exporting import (
    SUPPORTED_DECODING_KEYS,
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
from seq2seq.model.attention import CrossAttention, SelfAttention
from seq2seq.model.relative_positions import MAX_DISTANCE
from seq2seq.model.transformer import DecoderLayer, FeedForward, Transformer
from seq2seq.recipe import Recipe, TransformerSection
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID, Tokenizers, Vocabulary
from seq2seq.translation.scoring import PairScore
from seq2seq.translation.translation import Translation

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "gelu_tanh": "GELUTanh"}
unsupported_by_ctranslate2 = partial(unsupported_feature, knows_t5=True)
"""Function of a section `model` that returns the reason why CTranslate2 does not support it; "" if it does."""
MODEL_FILE = "model.bin"
MAX_LENGTH = 256
"""CTranslate2's default maximum length of a translation, in pieces. A translation that exceeds the positions of the
model is an error there."""
CTRANSLATE2_DECODING_KEYS = SUPPORTED_DECODING_KEYS | {"patience"}
VNNI = {"avx512_vnni", "avx_vnni"}
"""CPU flags of the instructions that sum products of int8 numbers in int32."""
INT8_NOTE = """\
On AMD processors without VNNI instructions (before Zen 4), use `compute_type="float32"`. There, int8 has 4 to 7 times
the usual rounding error, and is only 1.2 times as fast as float32 (measured on a Zen 3).
"""


def library() -> Any:
    """Import CTranslate2 and return the module."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError as error:
        raise UserError("this needs CTranslate2: pip install ctranslate2") from error


def compute_type() -> str:
    """Return the number format in which this machine's CPU computes: that of the stored weights.

    On AMD CPUs without VNNI, it is fp32. On a Zen 3, int8 changed the
    log-probability of a token by 0.055 on average for a model of width 128 (with MKL, as on Intel's CPUs, 0.008), and
    by 0.011 for width 256 (0.003). It was only 1.2 times as fast as fp32 (CTranslate2 4.8.5).
    """
    flags = cpu_flags()
    amd = "sse4a" in flags                                              # instructions that only AMD's CPUs have
    return "float32" if amd and not VNNI & flags else "default"


# Export


def tolerance_of(quantization: str) -> Tolerance:
    """Return the maximum difference that is allowed between a model and its export. For float32, the score limit
    applies to every line. For other formats, some lines differ more, so the limit applies to the mean per token."""
    return Tolerance(1e-3, 0.99, each=True) if quantization == "float32" else Tolerance(0.02, 0.7, each=False)


def export_model(path: Path, output: Path, quantization: str = "float32", source: Path | None = None,
                 max_lines: int = 500) -> Parity:
    """Write a model as a CTranslate2 directory, with tokenizer and a README that explains how to run it.

    Args:
        quantization: number format of the weights, one of QUANTIZATIONS.
        source: file of source lines for the comparison with the original; if None, the recipe's validation set.
        max_lines: maximum number of lines to compare.
    """
    library()
    exportable = read_exportable(path, "ctranslate2", CTRANSLATE2_DECODING_KEYS, unsupported_by_ctranslate2)
    recipe, tokenizers = exportable.recipe, exportable.tokenizers
    lines = development_lines(recipe, source, max_lines)
    ours = translator_with_exported_decoding(path, exportable)

    def write(directory: Path) -> None:
        convert(exportable.model, exportable.section, tokenizers, directory, quantization, exportable.aligner)
        tokenizers.save(directory)
        write_card(directory, path, exportable, "ctranslate2", usage(exportable, quantization), directory / MODEL_FILE,
                   quantization)

    return write_checked_export(output, f"the export to ctranslate2 ({quantization})", write,
                                lambda directory: CTranslate2Model(directory, tokenizers, recipe), ours, lines,
                                tolerance_of(quantization))


def convert(model: Transformer, section: TransformerSection, tokenizers: Tokenizers, directory: Path,
            quantization: str = "float32", aligner: AlignmentSettings | None = None) -> None:
    """Write a CTranslate2 model with the weights of `model`, whose attention scores must be scaled dot products.

    aligner: layer and head (1 or "mean") for CTranslate2's alignments; if None, the mean of the last layer's heads.
    """
    library()
    from ctranslate2.specs import common_spec, transformer_spec

    spec = transformer_spec.TransformerSpec.from_config(
        (section.encoder_layers, section.decoder_layers), section.num_heads, pre_norm=section.norm == "pre",
        activation=getattr(common_spec.Activation, ACTIVATIONS[section.activation]),
        layernorm_embedding=section.embedding_norm, relative_attention_bias=section.positions == "relative",
        ffn_glu=section.gated, rms_norm=section.norm_type == "rms",
        alignment_layer=aligner.layer - 1 if aligner and aligner.layer else -1,
        alignment_heads=1 if aligner and aligner.head == 1 else section.num_heads)
    for side, embedding, positions, layers in (
        (spec.encoder, model.source_embedding, model.source_positions, model.encoder),
        (spec.decoder, model.target_embedding, model.target_positions, model.decoder),
    ):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(embedding)
        side.scale_embeddings = section.scale_embedding
        if section.positions != "relative":
            side.position_encodings.encodings = _array(positions)
        for theirs, layer in zip(side.layer, layers, strict=True):
            ours = cast(DecoderLayer, layer)                    # an encoder layer lacks only the cross-attention
            _self_attention(theirs.self_attention, ours.self_attention, ours.self_residual.norm)
            if isinstance(side, transformer_spec.TransformerDecoderSpec):
                _cross_attention(theirs.attention, ours.cross_attention, ours.cross_residual.norm)
            _feed_forward(theirs.ffn, ours.feed_forward, ours.feed_forward_residual.norm)
    if model.source_embedding_norm is not None and model.target_embedding_norm is not None:
        _norm(spec.encoder.layernorm_embedding, model.source_embedding_norm)
        _norm(spec.decoder.layernorm_embedding, model.target_embedding_norm)
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
    spec.config.bos_token, spec.config.decoder_start_token = target[START_ID], target[model.start_id]
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


def _linear(spec: Any, layer: nn.Module) -> None:
    assert isinstance(layer, nn.Linear)
    spec.weight = _array(layer.weight)
    if layer.bias is not None:
        spec.bias = _array(layer.bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _self_attention(spec: Any, layer: SelfAttention, norm: nn.Module) -> None:
    spec.queries_scale = layer.weighing.scale                   # CTranslate2 takes d_model / num_heads for head_size
    _linear(spec.linear[0], layer.query_key_value)
    _linear(spec.linear[1], layer.output)
    _norm(spec.layer_norm, norm)
    if layer.relative is not None:
        spec.relative_attention_bias = _array(layer.relative.weight)
        spec.relative_attention_max_distance = np.int32(MAX_DISTANCE)


def _cross_attention(spec: Any, layer: CrossAttention, norm: nn.Module) -> None:
    spec.queries_scale = layer.weighing.scale
    _linear(spec.linear[0], layer.query)
    _linear(spec.linear[1], layer.key_value)
    _linear(spec.linear[2], layer.output)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, layer: FeedForward, norm: nn.Module) -> None:
    if layer.gate is None:
        _linear(spec.linear_0, layer.inner)
    else:
        _linear(spec.linear_0, layer.gate)
        _linear(spec.linear_0_noact, layer.inner)
    _linear(spec.linear_1, layer.outer)
    _norm(spec.layer_norm, norm)


USAGE = """\
To translate, in this directory:

```python
import ctranslate2{imports}

translator = ctranslate2.Translator(".", device="cpu")
{encode}

sources = [encode(line) for line in ["..."]]
results = translator.translate_batch(
    sources, {prefix}beam_size={beam_size}, length_penalty={length_penalty},
    max_decoding_length={max_length}, disable_unk=True)
for result in results:
    print(decode(result.hypotheses[0]{after_prefix}))
```
{notes}"""
TARGET_TOKEN_NOTE = """\
The token before each source, here `{token}`, names the language to translate into. `{file}` has the tokens of all
languages.
"""
OWN_TOKENS_NOTE = """\
The token before each source, here `{token}`, names the language of the source. The target prefix, here `{first}`,
names the language to translate into. `{file}` has the tokens of all languages.
"""
WITH_SENTENCEPIECE = """\
source, target = (sentencepiece.SentencePieceProcessor(model_file=name) for name in {files})


def encode(line):
    return {before}source.encode({line}, out_type=str)


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
    source, target = tokenizers.source, tokenizers.target
    files = list(tokenizers.files())
    marian = isinstance(source, MarianVocabulary)
    codes = recipe.languages.pair
    token = source.language_id(source.token_language(Source("", source_language=codes[0], language=codes[1])))
    before = [] if token is None else source.pieces(source.token_ids(token))
    first_id = target.first_id(codes[1])
    first = [] if first_id is None else target.pieces([first_id])
    encode, imports = WITH_WORDS, ""
    if recipe.tokenizer.type != "words" or marian:
        line = '" " + line' if before and not first else "line"                  # as in `Vocabulary.encode`
        encode = WITH_SENTENCEPIECE.format(
            files=repr((files[0], files[min(1, len(files) - 1)])), before=f"{before} + " if before else "", line=line,
            spaces='.replace("\\u2581", " ").strip()' if marian else "")
        imports = "\nimport sentencepiece"
    notes = []
    if before:
        note = OWN_TOKENS_NOTE if first else TARGET_TOKEN_NOTE
        notes.append(note.format(token=before[-1], first="".join(first),
                                 file=f"{'shared' if tokenizers.joint else 'source'}_vocabulary.json"))
    if quantization.startswith("int8"):
        notes.append(INT8_NOTE)
    return USAGE.format(
        imports=imports, encode=encode, prefix=f"target_prefix=[{first}] * len(sources), " if first else "",
        after_prefix="[1:]" if first else "", beam_size=recipe.decoding.beam_size,
        length_penalty=recipe.decoding.length_penalty, max_length=min(recipe.model.max_positions, MAX_LENGTH),
        notes="".join(f"\n{note}" for note in notes))


# Comparison with the original


class CTranslate2Model:
    """A model in CTranslate2 with the interface `parity.Exported`. It runs on the CPU, in the format of its weights.

    CTranslate2 excludes suppressed tokens from the softmax. A translation without `</s>` is cut at the maximum length.
    """

    def __init__(self, directory: Path, tokenizers: Tokenizers, recipe: Recipe, suppress: bool = True) -> None:
        """directory: directory that `convert` wrote. suppress: False to generate all pieces, as Argos Translate does.
        """
        self.directory = directory
        with self._reporting_damage():
            # With several threads, scores differ between runs, and an export would not have the same bytes each time.
            self.translator = library().Translator(str(directory), device="cpu", compute_type=compute_type(),
                                                   intra_threads=1)
        self.source, self.target = tokenizers.source, tokenizers.target
        self.max_positions = recipe.model.max_positions
        self.batch_tokens = recipe.decoding.batch_tokens_or_default
        never = self.target.pieces(self.target.never_generated_ids) if suppress else []
        self.suppressed = [[piece] for piece in never]
        self.ids = {piece: index for index, piece in enumerate(pieces(self.target))}

    def translate(self, lines: Sequence[Source], **decoding: Any) -> list[list[Translation]]:
        """See `Translator.translate`. Of `decoding`, only beam_size, length_penalty, max_length and min_length are
        used. All scores in the result are 0."""
        sources = [self.source.pieces(ids) for ids in self.source.encode(lines)]
        given = [self._given_pieces(line) for line in lines]
        given_length = max(map(len, given), default=0)                          # counts in CTranslate2's lengths
        limit = min(self.max_positions, given_length + decoding["max_length"] + 1)
        with self._reporting_damage():
            results = self.translator.translate_batch(
                sources, target_prefix=given, beam_size=decoding["beam_size"],
                length_penalty=decoding["length_penalty"],
                min_decoding_length=given_length + decoding["min_length"],
                max_decoding_length=limit, max_batch_size=self.batch_tokens, batch_type="tokens", max_input_length=0,
                suppress_sequences=self.suppressed)
            found = [[self.ids[piece] for piece in result.hypotheses[0][: limit - 1]] for result in results]
        texts = self.target.decode(found)
        return [[Translation(text.replace("\n", " ").strip(), 0.0, 0.0, 0)] for text in texts]

    def score(self, pairs: Sequence[tuple[Source, str]]) -> list[PairScore]:
        sources = [self.source.pieces(ids) for ids in self.source.encode([source for source, _ in pairs])]
        lines = self.target.target_lines([target for _, target in pairs], [source for source, _ in pairs])
        targets = [self.target.pieces(ids) for ids in self.target.encode(lines)]
        with self._reporting_damage():
            results = self.translator.score_batch(sources, targets, max_batch_size=self.batch_tokens,
                                                  batch_type="tokens", max_input_length=0)
        return [PairScore(float(np.sum(result.log_probs[len(self._given_pieces(source)) :])), len(result.log_probs))
                for (source, _), result in zip(pairs, results, strict=True)]

    def _given_pieces(self, source: Source) -> list[str]:
        """Return the pieces with which the target of a line begins without prediction: the token of its language."""
        first = self.target.first_id(source.language)
        return [] if first is None else self.target.pieces([first])

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        """Context in which CTranslate2's errors, and pieces that the vocabulary lacks, are raised as FormatError."""
        try:
            yield
        except (RuntimeError, ValueError, LookupError, OverflowError, MemoryError) as error:
            raise FormatError(f"CTranslate2 cannot run {self.directory}, or the export is damaged: "
                              f"{error or type(error).__name__}. Export the model again.") from error


__all__ = ["QUANTIZATIONS", "CTranslate2Model", "FormatError", "convert", "export_model", "pieces"]
