"""From text and recipe to training, bundle, translation and score."""

import random
import shutil

import pytest

from seq2seq.recipe import load_recipe
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.training.run import train
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator

RECIPE = """
name: {name}
languages: {{source: en, target: de}}
data:
  train: [{{source: train.en, target: train.de}}]
  valid: {{source: valid.en, target: valid.de}}
  test: {{same: {{source: valid.en, target: valid.de}}}}
tokenizer: {{vocab_size: {vocab_size}}}
model:
  {{d_model: {d_model}, encoder_layers: {layers}, decoder_layers: {layers}, dropout: 0.0, {model}}}
training:
  batch_tokens: {batch_tokens}
  learning_rate: {rate}
  warmup_steps: {warmup_steps}
  schedule: linear
  max_steps: {steps}
  validate_every: {steps}
  label_smoothing: 0.0
  precision: fp32
# Where copying is the task, a copy is no fault. So sure a model is searched with patience: else what ends early, and
# hardly ever, fills the beam.
decoding: {{beam_size: {beam_size}, patience: 2, safety_net: false}}
"""

TRANSFORMER = "num_heads: 4, feed_forward: 128"
RNN = "type: rnn, num_heads: 1"
VARIANTS = [
    f"{TRANSFORMER}, score: dot",
    f"{TRANSFORMER}, score: bilinear",
    f"{TRANSFORMER}, score: additive",
    f"{TRANSFORMER}, normalize: relu",
    f"{TRANSFORMER}, selection: hard",
    f"{TRANSFORMER}, selection: structured",
    f"{TRANSFORMER}, window: 3",
    f"{TRANSFORMER}, positions: learned, max_positions: 300",
    f"{TRANSFORMER}, copy: true",
    f"{RNN}, cell: lstm, input_feeding: true",
    f"{RNN}, score: dot",
    f"{RNN}, score: scaled_dot, normalize: relu",
    f"{RNN}, score: bilinear",
    f"{RNN}, selection: hard",
    f"{RNN}, copy: true",
]

PAIRS = """
The dog sleeps.|Der Hund schläft.
The cat drinks milk.|Die Katze trinkt Milch.
I do not know.|Ich weiß es nicht.
Where is the station?|Wo ist der Bahnhof?
It is raining again.|Es regnet schon wieder.
She reads a long letter.|Sie liest einen langen Brief.
We have 12 apples.|Wir haben 12 Äpfel.
“Come in!” he said.|„Komm herein!“, sagte er.
The train leaves at 7:45.|Der Zug fährt um 7.45 Uhr.
Nobody was at home.|Niemand war zu Hause.
My brother plays chess.|Mein Bruder spielt Schach.
That costs too much.|Das kostet zu viel.
The children are singing.|Die Kinder singen.
Please close the window.|Bitte schließ das Fenster.
He works in a factory.|Er arbeitet in einer Fabrik.
The soup is cold.|Die Suppe ist kalt.
Can you help me?|Kannst du mir helfen?
They live by the sea.|Sie wohnen am Meer.
Birds fly south in autumn.|Vögel fliegen im Herbst nach Süden.
Tomorrow is Sunday.|Morgen ist Sonntag.
"""


def write(folder, name, pairs):
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("model", [TRANSFORMER, RNN], ids=["Transformer", "RNN"])
def test_a_small_model_memorises_twenty_pairs_and_translates_them_from_its_bundle(tmp_path, model):
    pairs = [line.split("|") for line in PAIRS.strip().splitlines()]
    for name in ("train", "valid"):
        write(tmp_path, name, pairs)
    (tmp_path / "recipe.yaml").write_text(
        # Greedy: with a model as sure as this one, what fills a beam is never better than chance.
        RECIPE.format(name="memory", vocab_size=350, d_model=64, layers=1, batch_tokens=400, rate=0.005,
                      warmup_steps=20, steps=150, beam_size=1, model=model))
    scores = train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run")
    assert scores["same"]["bleu"].value == pytest.approx(100)
    # A bundle is all that is needed, wherever it is.
    shutil.move(best_bundle(tmp_path / "run"), tmp_path / "elsewhere")
    for path in [*tmp_path.glob("*.en"), *tmp_path.glob("*.de")]:
        path.unlink()
    translator = Translator.load(tmp_path / "elsewhere", precision="fp32")
    found = translator.translate([source for source, _ in pairs])
    assert [best.text for best, *_ in found] == [target for _, target in pairs]
    scored = pair_scores(translator, [(source, target) for source, target in pairs])
    assert [score.log_probability for score in scored] == pytest.approx(
        [best.log_probability for best, *_ in found], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model", [TRANSFORMER, RNN, *VARIANTS])
def test_a_model_learns_to_copy_sentences_it_has_never_seen(tmp_path, model):
    """By chance, one word of 20 is right."""
    rng = random.Random(11)
    words = [f"{first}{second}" for first in "bdgk" for second in "aeiou"]
    lines = sorted({" ".join(rng.choices(words, k=rng.randint(2, 6))) for _ in range(2100)})
    rng.shuffle(lines)
    write(tmp_path, "train", [(line, line) for line in lines[:-100]])
    write(tmp_path, "valid", [(line, line) for line in lines[-100:]])
    # Without a softmax, which position is meant is learnt more slowly, and with norms before the sublayers only.
    norm = ", norm: pre" if model == f"{TRANSFORMER}, normalize: relu" else ""
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(
        name="copy", vocab_size="auto", d_model=64, layers=1, batch_tokens=600, rate=0.005, warmup_steps=50, steps=300,
        beam_size=5, model=f"{model}{norm}"))
    train(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "run")
    found = Translator.load(tmp_path / "run").translate(lines[-100:])
    right = sum(got == wanted for line, (best, *_) in zip(lines[-100:], found, strict=True)
                for got, wanted in zip(best.text.split(), line.split(), strict=False))
    assert right / sum(len(line.split()) for line in lines[-100:]) >= 0.95
