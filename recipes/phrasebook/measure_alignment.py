"""Measure the alignment error rate of attention for every layer and head against the gold alignments of the grammar.

    python recipes/phrasebook/measure_alignment.py [MODEL]

Layer, head, step and rule are chosen on valid and evaluated on test. They are stored in the model's metadata, where
`seq2seq align` reads them. Prints the table of RESULTS.md.
"""

import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

from seq2seq.alignment.align import link_words
from seq2seq.data.alignment_links import AlignmentSettings, Reference, Rule, Step, alignment_error_rate
from seq2seq.storage.checkpoints import load_bundle, resolve_model_path, save_best
from seq2seq.translation.attention_maps import PairAttention, compute_pair_attention
from seq2seq.translation.translator import Translator

RUN = Path(__file__).resolve().parents[2] / "runs" / "phrasebook"
DATA = RUN / "data"


def parse_reference(line: str) -> Reference:
    """Parse a line of links such as `0-0 1?2`: a hyphen marks a sure link, a question mark a possible link.

    Raises:
        ValueError: the line has another format.
    """
    sure, possible = set(), set()
    for token in line.split():
        match = re.fullmatch(r"(\d+)([-?])(\d+)", token)
        if not match:
            raise ValueError(f"{token!r} is not a link; write 0-2 for a sure link, 0?2 for a possible one")
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Reference(frozenset(sure), frozenset(possible))


def read(split: str) -> tuple[list[tuple[str, str]], list[Reference]]:
    """Read the pairs of a split and their gold alignments."""
    english, chinese, alignments = ((DATA / f"{split}.{suffix}").read_text(encoding="utf-8").splitlines()
                                    for suffix in ("en", "zh", "words"))
    return list(zip(english, chinese, strict=True)), [parse_reference(line) for line in alignments]


def aligners(pair: PairAttention) -> Iterator[AlignmentSettings]:
    """Yield all settings for alignment with the model's cross-attention."""
    layers, heads = pair.maps["cross"].shape[:2]
    for layer, head, step, rule in product(range(1, layers + 1), [*range(1, heads + 1), "mean"], get_args(Step),
                                           get_args(Rule)):
        yield AlignmentSettings(layer, head, step, rule)


def measure(model: Path) -> None:
    """Print the error rates and store the best settings in the model's metadata."""
    translator = Translator.load(model, device="cpu", precision="fp32")
    languages = translator.languages.pair
    pair_attention, references = {}, {}
    for split in ("valid", "test"):
        pairs, references[split] = read(split)
        attention = dict(compute_pair_attention(translator, pairs, ["cross"]))
        pair_attention[split] = [attention[index] for index in range(len(pairs))]

    def rate(aligner: AlignmentSettings, split: str) -> float:
        alignments = (link_words(pair, aligner, languages).links.keys() for pair in pair_attention[split])
        return alignment_error_rate(alignments, references[split])

    on_valid = {aligner: rate(aligner, "valid") for aligner in aligners(pair_attention["valid"][0])}
    best = min(on_valid, key=on_valid.__getitem__)
    print(f"| layer | head | {' | '.join(f'{step}, {rule}' for step in get_args(Step) for rule in get_args(Rule))} |")
    print(f"|---|---|{'---|' * len(get_args(Step)) * len(get_args(Rule))}")
    rows: dict[tuple[object, object], list[str]] = {}
    for aligner, error in on_valid.items():
        cell = f"{error:.1%}"
        rows.setdefault((aligner.layer, aligner.head), []).append(f"**{cell}**" if aligner == best else cell)
    for (layer, head), cells in rows.items():
        print(f"| {layer} | {head} | {' | '.join(cells)} |")
    aer = rate(best, "test")
    print(f"\nBest on valid: {best}; AER on test {aer:.1%}, on valid {on_valid[best]:.1%}.")
    print(f"AER of the default settings of `seq2seq align` on test: {rate(AlignmentSettings(), 'test'):.1%}.")
    bundle = load_bundle(resolve_model_path(model))
    if bundle.directory == model:
        sys.exit(f"{model} is a bundle, which does not change. Name its run to store the settings.")
    alignment = {"layer": best.layer, "head": best.head, "step": best.step, "rule": best.rule, "aer": round(aer, 4)}
    save_best(model, "aligned", bundle.weights, bundle.recipe_text, bundle.tokenizer_files,
              {**bundle.metadata, "alignment": alignment})


if __name__ == "__main__":
    measure(Path(sys.argv[1]) if len(sys.argv) > 1 else RUN)
