"""The benchmarks run, and give all systems the same task."""

import functools
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from command_files import run_command
from toy import copy_finished_run

from benchmarks import attacks, cleaning, decoding, documents, learning, pretrained, starting, training
from benchmarks.__main__ import benchmark_recipe, main
from benchmarks.measuring import SystemProcess, by_name, environment, measure_in_rounds, peak_memory
from seq2seq.errors import RecipeError, UserError
from seq2seq.inference import engines
from seq2seq.model.loss import smoothed_cross_entropy
from seq2seq.recipe import TransformerSection
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.training import run as training_run

for package in ("transformers", "ctranslate2", "matplotlib"):
    pytest.importorskip(package)

ROOT = Path(__file__).parents[1]
linux = pytest.mark.skipif(sys.platform != "linux",
                           reason="needs /proc, and several addresses of the loopback interface")
NUMERALS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four"), ("fünf", "five"), ("sechs", "six"),
            ("sieben", "seven"), ("acht", "eight"), ("neun", "nine"), ("und", "and"), ("oder", "or")]


@pytest.fixture
def data(tmp_path):
    """Directory with the file names of Multi30k; the lines are random sequences of numerals."""
    generator = random.Random(3)
    for name, count in (("train", 300), ("val", 5), ("test_2016_flickr", 13)):
        pairs = [generator.choices(NUMERALS, k=generator.randint(2, 7)) for _ in range(count)]
        for side, language in enumerate(("de", "en")):
            lines = [" ".join(pair[side] for pair in words) + "\n" for words in pairs]
            (tmp_path / f"{name}.{language}").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def run(monkeypatch, *arguments):
    """Return the exit code of `python -m benchmarks`."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
    return main()


class InThisProcess:
    """Replacement for `SystemProcess`, because each process would take seconds to start."""

    def __init__(self, prepare, *arguments, **options):
        self.name, self.run = prepare(*arguments, **options)

    def round(self, task):
        began = time.perf_counter()
        units, output = self.run(task)
        return units / (time.perf_counter() - began), output, 1.0

    def close(self): ...


def run_in_this_process(command):
    """Replacement for `starting.run`: run a command of seq2seq in this process, and no other command."""
    if command[:3] == starting.SEQ2SEQ:
        result = run_command(*command[3:])
        assert result.code == 0, result.err
    return starting.Times(0.5, 1.0)


@pytest.fixture
def in_this_process(monkeypatch):
    """Let the benchmarks start no processes, and leave the settings of this one alone."""
    for module in (decoding, training):
        monkeypatch.setattr(module, "SystemProcess", InThisProcess)
    for module in (decoding, training, learning):
        monkeypatch.setattr(module, "configure_process", lambda threads: None)
    monkeypatch.setattr(learning, "ProcessPoolExecutor", lambda at_once, *_: ThreadPoolExecutor(at_once))
    for module in (starting, documents):
        monkeypatch.setattr(module, "run", run_in_this_process)


def learn(monkeypatch, data, folder, shape, steps, systems=()):
    """Return the exit code of `python -m benchmarks.learning`."""
    sizes = ["model.d_model=16", "tokenizer.vocab_size=300", "training.precision=fp32"]
    monkeypatch.setattr(sys, "argv", [
        "learning", "--data", str(data), "--shape", shape, "--steps", str(steps), "--every", "1", "--threads", "1",
        "--output", str(folder / "results"), *(argument for size in sizes for argument in ("--set", size)),
        *(["--systems", *systems] if systems else [])])
    return learning.main()


def scripted(rates):
    """Return a system that reports these rates, and the number of the round as its output."""
    rounds = iter([(rate, number, 7.0 * number) for number, rate in enumerate(rates)])

    class Scripted:
        def round(self, task):
            assert task == "task"
            return next(rounds)

    return Scripted()


@pytest.mark.slow
def test_both_systems_compute_the_same_loss_for_the_same_batch(make_model, make_batch):
    from benchmarks.marian import marian, with_our_weights
    from benchmarks.training import marian_loss

    section = TransformerSection(d_model=14, encoder_layers=2, decoder_layers=3, num_heads=2, feed_forward=17,
                           max_positions=19, dropout=0.3)
    ours = make_model(torch.float32, output_bias=True)
    theirs = with_our_weights(marian(section, 23), ours).eval()
    batch = make_batch()
    sums = smoothed_cross_entropy(ours(batch), batch.target_output, batch.target_count, 0.1)
    assert marian_loss(theirs, batch, 0.1).item() == pytest.approx(sums.total.item() / sums.tokens, rel=1e-5)


@pytest.mark.slow
def test_marian_has_the_size_and_dropout_of_the_recipe():
    from benchmarks.marian import marian

    section = benchmark_recipe(ROOT / "recipes", "small", None, check_files=False).model
    model = marian(section, 8000)
    # 8,000 x 256 + 3 x 789,760 (an encoder layer) + 3 x 1,053,440 (a decoder layer).
    assert sum(weight.numel() for name, weight in model.named_parameters() if "positions" not in name) == 7_577_600
    assert model.config.dropout == 0.3 and model.config.attention_dropout == model.config.activation_dropout == 0
    with pytest.raises(ValueError, match="norm: post"):
        marian(section.model_copy(update={"norm": "pre"}), 8000)


def test_ratios_are_computed_within_each_round_and_the_first_round_is_not_counted():
    systems = {"fast": scripted([1, 30, 60, 80]), "slow": scripted([99, 10, 30, 20])}
    (fast, slow), outputs = measure_in_rounds(systems, "slow", 3, "task")
    assert fast == {"system": "fast", "rate": {"median": 60, "lowest": 30, "highest": 80},
                    "ratio": {"median": 3, "lowest": 2, "highest": 4}, "memory": 21}
    assert slow["rate"]["median"] == 20 and set(slow["ratio"].values()) == {1}
    assert outputs == {"fast": 3, "slow": 3}


def test_the_memory_of_a_system_excludes_that_of_the_parent_process():
    system = SystemProcess(tuple, ("division", functools.partial(divmod, 17)))
    assert system.name == "division"
    rate, output, memory = system.round(5)                                      # 17 = 3 * 5 + 2
    system.close()
    assert rate > 3 and output == 2
    assert memory < peak_memory() / 2


SMALLEST = ("--shape", "tiny", "--steps", 1, "--sentences", 2, "--repetitions", 1, "--threads", 1)


@pytest.mark.parametrize(("name", "systems"), [
    ("training", {"seq2seq fp32", "transformers fp32", "torch.nn.Transformer fp32"}),
    ("decoding", {"seq2seq fp32, beam 4, 32 at a time", "CTranslate2 int8, beam 4, 32 at a time"}),
    ("data", {"gathering batches", "preparing text", "sentencepiece alone"})])
def test_each_benchmark_runs_in_its_smallest_form(data, tmp_path, monkeypatch, in_this_process, name, systems):
    assert run(monkeypatch, name, "--data", data, "--output", tmp_path / "benchmarks", *SMALLEST) == 0
    results = json.loads((tmp_path / "benchmarks" / f"{name}-tiny.json").read_text())
    assert systems <= {row["system"] for row in results["rows"]}


def test_a_row_has_the_precision_that_is_used_and_not_the_one_that_was_asked_for(tmp_path, monkeypatch, capsys):
    bundle, task = best_bundle(copy_finished_run(tmp_path)), decoding.Task("greedy", 1, 1)
    engines._kernels.cache_clear()
    monkeypatch.setattr(engines, "usable_libraries", lambda *_: [])
    name, _ = decoding.ours(bundle, "int8", 1, [], task)
    kernels = environment()["kernels"]
    engines._kernels.cache_clear()
    assert name != "seq2seq int8" and "int8 is not available" in kernels
    first, second = (InThisProcess(lambda name: (name, None), name) for name in ("seq2seq fp32", "seq2seq fp32"))
    assert list(by_name([first, second]).values()) == [first]
    assert "seq2seq fp32" in capsys.readouterr().err


def test_the_learning_benchmark_runs_in_its_smallest_form(data, tmp_path, monkeypatch, in_this_process):
    assert learn(monkeypatch, data, tmp_path, "tiny", steps=1, systems=["plain PyTorch fp32", "seq2seq fp32"]) == 0
    results = json.loads((tmp_path / "results" / "learning-tiny.json").read_text())
    assert {"plain PyTorch fp32", "seq2seq fp32"} == {row["system"] for row in results["rows"]}


def test_the_starting_benchmark_runs_in_its_smallest_form(data, monkeypatch, in_this_process, capsys):
    monkeypatch.setattr(sys, "argv", ["starting", "--data", str(data), "--repetitions", "1"])
    monkeypatch.setattr(starting, "random_bundle", lambda _, folder: copy_finished_run(folder / "toy"))
    assert starting.main() == 0
    assert "| seq2seq translate, one line | 0.50 " in capsys.readouterr().out


def test_the_benchmark_of_documents_runs_in_its_smallest_form(tmp_path, monkeypatch, in_this_process, capsys):
    model, text = copy_finished_run(tmp_path), tmp_path / "valid.en"
    monkeypatch.setattr(documents, "MESSAGES", 5)
    monkeypatch.setattr(sys, "argv", ["documents", str(model), "--source", str(text), "--page-bytes", "500",
                                      "--repetitions", "1"])
    documents.main()
    assert "| messages.po | 5 | 1.00 | 1.0 |" in capsys.readouterr().out


def test_the_gpu_benchmark_runs_in_its_smallest_form(tmp_path, monkeypatch):
    from benchmarks import device

    monkeypatch.setattr(sys, "argv", ["device", "--tiny", "decoding", "checks", "--output", str(tmp_path)])
    assert device.main() == 0
    results = json.loads((tmp_path / "device.json").read_text())
    assert results["beam 1"]["tokens a second"] > 0 and results["two trainings have the same weights"]


@linux
def test_the_benchmark_of_attacks_runs_in_its_smallest_form(tmp_path, capsys):
    model, text = copy_finished_run(tmp_path), tmp_path / "text"
    text.write_text("one cat\n")
    assert attacks.main(["--model", str(model), "--text", str(text), "--seconds", "0.3", "--only", "none"]) == 0
    assert "| none |" in capsys.readouterr().out


@pytest.mark.slow
def test_all_benchmarks_run_and_write_their_results(data, tmp_path, monkeypatch, capsys):
    output = tmp_path / "benchmarks"
    assert run(monkeypatch, "--data", data, "--output", output, *SMALLEST) == 0
    for name, systems in (("training", {"seq2seq fp32", "transformers fp32", "torch.nn.Transformer fp32"}),
                          ("decoding", {"seq2seq fp32, beam 4, 32 at a time", "CTranslate2 int8, beam 4, 32 at a time",
                                        "transformers fp32, beam 4, 32 at a time"}),
                          ("data", {"gathering batches", "preparing text"})):
        results = json.loads((output / f"{name}-tiny.json").read_text())
        assert (output / f"{name}-tiny.png").stat().st_size > 1000
        assert systems <= {row["system"] for row in results["rows"]}
        assert results["surroundings"].keys() >= {"machine", "torch", "transformers", "ctranslate2", "commit"}
        for row in results["rows"]:
            assert row["rate"]["lowest"] > 0 and row["ratio"]["median"] > 0 and (row["memory"] > 50 or name == "data")
    out = capsys.readouterr().out
    assert "Training, tiny, 256 target tokens a step" in out and "Decoding, tiny, 2 sentences" in out


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny", "rnn"])
def test_the_learning_benchmark_writes_the_losses_of_all_systems(data, tmp_path, monkeypatch, capsys, shape):
    assert learn(monkeypatch, data, tmp_path, shape, steps=3) == 0
    results = json.loads((tmp_path / "results" / f"learning-{shape}.json").read_text())
    assert (tmp_path / "results" / f"learning-{shape}.png").stat().st_size > 1000
    assert {"plain PyTorch fp32", "seq2seq fp32"} <= {row["system"] for row in results["rows"]}
    for row in results["rows"]:
        assert [step for step, _ in row["curve"]] == [1, 2, 3]
        assert 4 < row["validation"] < 8                                        # log 300 is 5.7
    assert "| validation |" in capsys.readouterr().out


@pytest.mark.slow
def test_all_fp32_systems_give_the_same_translations_with_trained_weights(data, tmp_path):
    from benchmarks.decoding import measure

    recipe = benchmark_recipe(data, "tiny", 1)
    section = recipe.training.model_copy(update={
        "max_steps": 300, "validate_every": 300, "warmup_steps": 30, "learning_rate": 0.01, "precision": "fp32"})
    model = recipe.model.model_copy(update={"dropout": 0.0})
    scores = training_run.train(recipe.model_copy(update={"training": section, "model": model}), tmp_path / "run")
    assert scores["test_2016_flickr"]["bleu"].value > 30, "too low for a meaningful comparison"
    sentences = (data / "test_2016_flickr.de").read_text(encoding="utf-8").splitlines()
    references = (data / "test_2016_flickr.en").read_text(encoding="utf-8").splitlines()
    rows = measure(recipe, tmp_path, tmp_path / "run", "tiny", sentences, references, 1, 1)
    same = {row["system"]: row["same"] for row in rows if "32," in row["system"]}
    assert len(same) == 3 and set(same.values()) == {1}
    assert {row["bleu"] > 0 for row in rows if "transformers" not in row["system"]} == {True}
    other = recipe.model_copy(update={"languages": recipe.languages.model_copy(update={"source": "zh"})})
    with pytest.raises(RecipeError, match="translates de into en"):
        measure(other, tmp_path, tmp_path / "run", "tiny", sentences, references, 1, 1)


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_a_cpu(tmp_path, monkeypatch):
    from benchmarks import device

    monkeypatch.setattr(sys, "argv", ["device", "--tiny", "--output", str(tmp_path)])
    assert device.main() == 0
    results = json.loads((tmp_path / "device.json").read_text())
    assert results["two trainings have the same weights"] and results["distance of bf16 gradients to fp32"] < 0.05
    page = (tmp_path / "device.md").read_text()
    for name in ("tiny, 200 tokens, captions", "tiny, 300 tokens, news", "beam 4", "beam 1"):
        assert results[name]["tokens a second"] > 0 and results[f"transformers: {name}"]["tokens a second"] > 0
        assert results[name]["kernels"] > 100 and results[name]["classes"]["matrix products"] > 0
        assert len([line for line in page.splitlines() if line.startswith(f"| {name} |")]) == 2
    assert 0 < results["tiny, 300 tokens, news"]["share of matrix speed"] < 1
    assert (tmp_path / "device.png").stat().st_size > 1000


def test_the_kernels_of_a_profile_have_classes():
    pytest.importorskip("triton")
    from benchmarks.device import class_of

    kernels = {"_overwrite_row": "loss", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT": "matrix products",
               "void at::native::vectorized_elementwise_kernel<4, …>": "elementwise", "unheard of": "other"}
    assert {kernel: class_of(kernel) for kernel in kernels} == kernels


def test_the_cleaning_benchmark_needs_labelled_pairs(tmp_path, monkeypatch, capsys):
    texts = {"en": ["a dog", "the small cat sleeps", "house"], "de": ["ein Hund", "die kleine Katze schläft", "Haus"],
             "label": ["V", "A", "V"]}
    for ending, lines in texts.items():
        (tmp_path / f"v3.en-de.{ending}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(cleaning, "RULES", {"short": {"max_characters": 11}})
    for arguments, code, message in (([], 2, "--data"),
                                     (["--data", str(tmp_path / "no")], 2, "en-de.en cannot be read"),
                                     (["--data", str(tmp_path)], 0, "| short | 1 | 1.000 | 1.000 |")):
        monkeypatch.setattr(sys, "argv", ["cleaning", *arguments])
        try:
            cleaning.main()
        except SystemExit as ended:
            assert ended.code == code
        else:
            assert code == 0
        captured = capsys.readouterr()
        assert message in captured.out + captured.err


def test_the_benchmark_of_pretrained_models_compares_engines_and_searches(monkeypatch, capsys):
    small = {"d_model": 16, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}
    for name, value in {"T5": pretrained.T5.model_copy(update=small), "M2M": pretrained.M2M.model_copy(update=small),
                        "VOCAB_SIZE": 50, "LENGTH": 3, "ROUNDS": 1}.items():
        monkeypatch.setattr(pretrained, name, value)
    assert pretrained.main() == 0
    table = capsys.readouterr().out
    assert table.count("| int8 1.00, fp32 ") == 4 and table.count("| whole 1.00, step by step ") == 4


@pytest.mark.slow
def test_the_starting_benchmark_measures_the_processor_time_of_each_command():
    busy = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    times = starting.measure({"busy": [sys.executable, "-c", busy], "idle": [sys.executable, "-c", ""]}, 2)
    assert [len(rounds) for rounds in times.values()] == [2, 2]
    assert all(one.processor >= 0.2 and one.wall > 0 for one in times["busy"])
    with pytest.raises(UserError, match="exit code 1:\nno model"):
        starting.measure({"failing": [sys.executable, "-c", "raise SystemExit('no model')"]}, 1)


@pytest.mark.slow
@linux
def test_the_benchmark_of_attacks_measures_an_honest_client_beside_each_attack(tmp_path, capsys):
    run, text = copy_finished_run(tmp_path / "toy"), tmp_path / "text"
    text.write_text("one cat sees two red dogs\n")
    assert attacks.main(["--model", str(run), "--text", str(text), "--seconds", "1", "--only", "none,empty,keys"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    none, empty, keys = (dict(zip(header, row, strict=True)) for row in rows)
    assert none["attack"] == "none" and none["errors"] == "0" and 2 <= int(none["requests"]) <= 9
    assert 0 < float(none["median (ms)"]) <= float(none["maximum (ms)"].replace(",", ""))
    for row in (none, empty, keys):
        assert 50 < float(row["memory at start (MB)"]) <= float(row["peak"]) and float(row["seconds to end"]) < 60
    lengths = [int(row["log (bytes)"].replace(",", "")) for row in (none, keys)]
    assert lengths[0] < lengths[1], "no wrong key arrived"
    assert attacks.main(["--model", str(run), "--text", str(text), "--load", "--against", str(ROOT), "--seconds", "0.5",
                         "--rounds", "1"]) == 0
    assert "| this / other | " in capsys.readouterr().out


def test_the_benchmark_of_attacks_names_unknown_attacks(capsys):
    for arguments, message in ((["--only", "none,nonsense"], "no attack nonsense"), (["--load"], "belong together")):
        with pytest.raises(SystemExit, match="2"):
            attacks.main(arguments)
        assert message in capsys.readouterr().err
