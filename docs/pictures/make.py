"""Draw the picture of the README from the run of `make demo`: loss and BLEU of the training, and the cross-attention of
a test sentence.

    .venv/bin/python docs/pictures/make.py [RUN]
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from seq2seq import Translator
from seq2seq.alignment.fonts import families_for
from seq2seq.alignment.shown_maps import AttentionMapSelection, rows_and_columns
from seq2seq.data.alignment_links import measured_aligner
from seq2seq.storage.run_directory import LOG_FILE, log_records
from seq2seq.translation.attention_maps import compute_pair_attention

HERE = Path(__file__).resolve().parent
SENTENCE = "It takes ten hours to go from Hong Kong to Shanghai by train."
BLUE, ORANGE = "#0969da", "#bc4c00"


def main(run: Path) -> None:
    """Write phrasebook.svg, and print the sentence with its translation."""
    translator = Translator.load(run, precision="reference")
    translation = translator.translate([SENTENCE])[0][0].text
    ((_, pair),) = compute_pair_attention(translator, [(SENTENCE, translation)], ["cross"])
    best = measured_aligner(run)
    ((_, weights),) = AttentionMapSelection("cross", best.layer or len(pair.maps["cross"]), best.head).maps(pair)
    rows, columns = rows_and_columns(pair, "cross")
    settings = {"font.family": families_for(SENTENCE + translation, translator.languages.codes), "font.size": 11,
                "svg.hashsalt": "seq2seq"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9.6, 3.7), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        draw_curves(left, [record for _, record in log_records(run / LOG_FILE)])
        right.imshow(weights, cmap="Blues", aspect="auto", interpolation="nearest")
        right.set_xticks(range(len(columns)), [label.text for label in columns], rotation=40, ha="left",
                         rotation_mode="anchor")
        right.set_yticks(range(len(rows)), [label.text for label in rows])
        right.tick_params(length=0, labeltop=True, labelbottom=False)
        right.set_xlabel("cross-attention of the pieces of a translation")
        figure.savefig(HERE / "phrasebook.svg", metadata={"Date": None})
    print(f"{SENTENCE}\n{translation}")


def draw_curves(axes: Axes, records: list[Mapping[str, Any]]) -> None:
    """Draw the losses of training and validation over the steps, with the BLEU score of each validation."""
    training, validation = ([record for record in records if record["kind"] == kind]
                            for kind in ("training", "validation"))
    axes.plot(*zip(*((record["step"], record["loss"]) for record in training), strict=True), color=BLUE,
              label="training (smoothed labels)")
    axes.plot(*zip(*((record["step"], record["loss"]) for record in validation), strict=True), "o", color=ORANGE,
              label="validation")
    for record in validation:
        axes.annotate(f"{record['bleu']:.1f} BLEU", (record["step"], record["loss"]), (4, 8), ha="right",
                      textcoords="offset points", color=ORANGE)
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel("loss, nats per target token")
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "runs" / "phrasebook")
