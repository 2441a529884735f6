"""Tests on a GPU: `make test-gpu`.

Without a GPU they are skipped; tests/simulated_gpu runs them on a simulated one, without real kernels and streams.
"""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lookup import on_host
from trainings import train_steps

from seq2seq.data.batching import IGNORE_INDEX, EncodedCorpus, EncodedSide, gather
from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.engines import torch_engine
from seq2seq.model import build_model, layers, transformer
from seq2seq.model import loss as loss_module
from seq2seq.model.loss import Logits
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import TrainingSection, TransformerSection
from seq2seq.recipe.model_section import RecurrentSection
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.storage.checkpoints import newest_checkpoint
from seq2seq.tokenizers.tokenizer import END_ID
from seq2seq.training import step
from seq2seq.training.distributed import SINGLE_PROCESS, ProcessGroup
from seq2seq.training.run import make_deterministic, start_training, train
from seq2seq.training.step import TrainingStep
from seq2seq.translation.translator import Translator

pytestmark = pytest.mark.usefixtures("without_waits")

SIMULATED = "TRITON_INTERPRET" in os.environ                                    # and slow
STEPS, TOKENS = (4, 110) if SIMULATED else (20, 330)

# With a tiny epsilon, Adam turns a gradient that is rounding alone into a whole step.
FEW_STEPS = (f"training.max_steps={STEPS}", f"training.validate_every={STEPS}", f"training.log_every={STEPS // 2}",
             "training.epsilon=0.001", "data.cleaning.max_pieces=30", f"training.batch_tokens={TOKENS}",
             "model.num_heads=1")


def losses(recipe, run):
    return train_steps(recipe, run, recipe.training.max_steps)[0]


@pytest.mark.parametrize(("precision", "accumulation"), [("fp32", 1), ("fp16", 1), ("auto", 1), ("auto", 4)])
def test_the_host_never_waits_in_a_step(toy_recipe, tmp_path, without_waits, precision, accumulation):
    recipe = toy_recipe(*FEW_STEPS, f"training.precision={precision}", f"training.accumulation={accumulation}")
    training = start_training(recipe, tmp_path / "run")
    steps = training.batches()
    training.update(*next(steps))                                               # makes the optimizer's state
    training.update(*next(steps))
    with without_waits():
        for _ in range(STEPS - 2):
            training.update(*next(steps))
    training.results.read()
    assert training.state.step == STEPS and training.state.skipped == 0


def test_losses_in_fp32_equal_those_of_the_cpu(toy_recipe, tmp_path):
    found, expected = (losses(toy_recipe(*FEW_STEPS, f"training.device={device}"), tmp_path / device)
                       for device in ("cuda", "cpu"))
    assert found == pytest.approx(expected, abs=1e-3) and found[-1] < found[0]


@pytest.mark.parametrize("precision", ["auto", "fp16", "tf32"])
def test_losses_in_16_bits_or_tf32_are_near_those_in_fp32(toy_recipe, tmp_path, precision):
    if precision == "tf32" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("TF32 needs compute capability 8.0 or above")
    found, expected = (losses(toy_recipe(*FEW_STEPS, f"training.precision={precision}"), tmp_path / precision)
                       for precision in (precision, "fp32"))
    assert found == pytest.approx(expected, abs=0.05)


@pytest.mark.skipif(torch.version.cuda is None, reason="Triton needs PyTorch's CUDA build")
@pytest.mark.parametrize("vocab_size", [7, 10_007, 32_000, 37_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_loss_kernel_agrees_with_the_operators_of_pytorch(monkeypatch, without_waits, dtype, vocab_size):
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(shape, generator=generator).to("cuda", dtype).requires_grad_()
             for shape in ((5_000, 16), (vocab_size, 16), (vocab_size,))]
    target = torch.randint(vocab_size, (5_000,), generator=generator).to("cuda")
    target[::7] = IGNORE_INDEX
    assert loss_module.gradient_function(parts[0].device, dtype) is not loss_module.overwrite_with_gradient

    def loss_and_gradients():
        loss = loss_module.smoothed_cross_entropy(Logits(*parts), target, 4_285, 0.1)
        return [loss.total.detach(), loss.log_probabilities, *torch.autograd.grad(loss.total, parts)]

    loss_and_gradients()                                                        # compiles for this vocabulary
    with without_waits():
        found = loss_and_gradients()
    monkeypatch.setattr(loss_module, "gradient_function", lambda *_: loss_module.overwrite_with_gradient)
    for one, other in zip(found, loss_and_gradients(), strict=True):
        tolerance = 4 * torch.finfo(one.dtype).eps if one.dtype != torch.float32 else 1e-4
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()))


@pytest.mark.skipif(torch.version.cuda is None, reason="Triton needs PyTorch's CUDA build")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_loss_kernel_keeps_nan(value):
    # Unlike NumPy's in Triton's interpreter, the maximum of a GPU ignores NaN.
    kernel = pytest.importorskip("seq2seq.model.kernels.loss", exc_type=ImportError)
    logits = torch.zeros(3, 9_001, device="cuda")
    logits[1, 5_000] = value
    outputs = torch.zeros(2, 3, 1, device="cuda")
    targets = torch.zeros(3, 1, dtype=torch.int64, device="cuda")
    kernel.overwrite_with_gradient(logits, targets, targets.squeeze(1) == 0, 0.1, True, *outputs)
    assert logits.isnan().all(1).tolist() == logits.isnan().any(1).tolist() == [False, True, False]
    assert outputs[1].isnan().squeeze(1).tolist() == [False, True, False]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_kernels_of_sublayers_are_as_exact_as_the_operators_of_pytorch(monkeypatch, norm, activation):
    pytest.importorskip("triton")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the kernels need compute capability 8.0 or above")
    side = EncodedSide.from_lists(np.random.default_rng(1).integers(4, 99, (11, 19)).tolist())
    batch = gather(EncodedCorpus(side, side), np.arange(11)).to(torch.device("cuda"))
    torch.manual_seed(1)
    model = build_model(TransformerSection(encoder_layers=2, decoder_layers=2, d_model=96, num_heads=3,
                                           feed_forward=200,
                                     dropout=0.0, norm=norm, activation=activation), 99, 99).to("cuda")

    def gradient(dtype):
        copied = copy.deepcopy(model).to(dtype)
        copied(batch).dense().float().square().sum().backward()
        return torch.cat([weight.grad.flatten().float() for weight in copied.parameters()])

    expected, found = gradient(torch.float32), gradient(torch.bfloat16)
    for module in (layers, transformer):
        monkeypatch.setattr(module, "usable_in_16_bits", lambda tensor: False)
    error, error_of_operators = ((each - expected).norm() / expected.norm()
                                 for each in (found, gradient(torch.bfloat16)))
    assert 0 < error < 1.2 * error_of_operators + 1e-3 and not torch.equal(error, error_of_operators)


def test_the_backward_pass_drops_what_the_forward_pass_has_dropped():
    kernel = pytest.importorskip("seq2seq.model.kernels.residual_norm", exc_type=ImportError)
    ones, zeros = (torch.full((300, 304), value, dtype=torch.bfloat16, device="cuda") for value in (1, 0))
    ones.requires_grad_()
    seed = torch.tensor([7], device="cuda")
    stream, _ = kernel.residual_norm(zeros, ones, None, ones[0], zeros[0], 1e-5, True, 0.25, seed, 3)
    stream.sum().backward()
    assert torch.equal(ones.grad, stream) and stream.unique().tolist() == [0, pytest.approx(4 / 3, rel=0.01)]
    assert (stream == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("options", [
    ("training.precision=auto",), ("training.precision=fp16", "training.accumulation=3"),
    ("training.precision=auto", "training.consistency=5"),
    ("training.precision=auto", "training.consistency=3", "training.consistency_cutoff=0.1")],
    ids=["auto", "fp16 in three micro-batches", "consistency", "SimCut"])
def test_a_training_with_cuda_graphs_has_the_same_weights_as_without_to_the_bit(toy_recipe, tmp_path, options):
    weights = []
    for with_graphs in (True, False):
        training = start_training(toy_recipe(*FEW_STEPS, "model.dropout=0.1", *options), tmp_path / str(with_graphs))
        training.step.graphs.enabled = with_graphs
        steps = training.batches()
        for _ in range(STEPS):
            training.update(*next(steps))
        training.results.read()
        assert any(training.step.captured.values()) == with_graphs and training.state.step == STEPS
        weights.append([weight.detach() for weight in training.step.weights])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.parametrize(("shape", "tokens", "dtype"), [
    ("small", 2_048, torch.bfloat16), ("small", 2_048, torch.float16), ("base", 25_000, torch.bfloat16)], ids=str)
def test_a_training_of_real_size_has_the_same_weights_with_and_without_graphs(monkeypatch, shape, tokens, dtype):
    from benchmarks.device import SHAPES, Bench, Steps

    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("attention without padding needs compute capability 8.0 or above")
    if SIMULATED:
        if (shape, dtype) != ("small", torch.bfloat16):
            pytest.skip("the simulated GPU has one shape, and a minute for it")
        shape, tokens = "tiny", 100
        monkeypatch.setitem(SHAPES["tiny"], "heads", 2)                         # attention of heads of 8 is padded
    checksums = []
    for with_graphs in (True, False, True):
        steps = Steps(Bench(torch.device("cuda")), shape, "news", tokens, dtype)
        steps.training.graphs.enabled = with_graphs
        for _ in range(3 if SIMULATED else 6):
            steps.step()
        assert any(steps.training.captured.values()) == with_graphs
        checksums.append(steps.checksum())
    assert len(set(checksums)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_training_with_long_sentences_and_without_graphs_has_the_same_weights_twice(dtype):
    # By default, PyTorch's fused attention divides many keys of few sentences, and adds their gradients atomically.
    pairs, length = (2, 20) if SIMULATED else (6, 240)
    side = EncodedSide.from_lists(np.random.default_rng(1).integers(4, 99, (pairs, length)).tolist())
    make_deterministic()

    def weights():
        torch.manual_seed(1)
        model = build_model(TransformerSection(encoder_layers=2, decoder_layers=2, d_model=64, num_heads=1,
                                               feed_forward=128), 99, 99).to("cuda").train()
        training = TrainingStep(model, TrainingSection(), dtype, seed=1, max_length=length + 1)
        for number in range(2 if SIMULATED else 20):
            training.update(EncodedCorpus(side, side), [np.arange(pairs)], number + 1, 1e-3)
        assert training.deterministic
        return torch.cat([weight.detach().flatten() for weight in training.weights])

    expected = weights()
    assert expected.isfinite().all() and all(torch.equal(weights(), expected) for _ in range(3))


@pytest.fixture
def sums_by_nccl(without_waits):
    """A process group of one rank that sums gradients by NCCL nevertheless."""
    if not dist.is_nccl_available():
        pytest.skip("this PyTorch has no NCCL")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield ProcessGroup(gradients=dist.new_group(backend="nccl", device_id=torch.device("cuda", 0)))
    dist.destroy_process_group()


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_gradients_summed_by_nccl_around_a_graph_change_no_weight(toy_recipe, tmp_path, without_waits, sums_by_nccl,
                                                                  precision):
    weights = []
    for group in (sums_by_nccl, SINGLE_PROCESS):
        recipe = toy_recipe(*FEW_STEPS, "model.dropout=0.1", f"training.precision={precision}")
        training = start_training(recipe, tmp_path / str(group.alone), group)
        steps = training.batches()
        for _ in range(2):
            training.update(*next(steps))
        with without_waits():                                                   # replays, and sums by NCCL
            for _ in range(2):
                training.update(*next(steps))
        assert any(training.step.captured.values()) == (precision == "auto")
        weights.append([weight.detach() for weight in training.step.weights])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


# A rank of a training whose processes share a card. Gloo sums the gradients: NCCL needs a card for each process.
RANK = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from seq2seq.recipe import load_recipe
from seq2seq.training.distributed import ProcessGroup
from seq2seq.training.run import start_training

run, size, rank, *settings = sys.argv[1:]
if int(size) > 1:
    dist.init_process_group("gloo", init_method=f"file://{run}.store", rank=int(rank), world_size=int(size))
training = start_training(load_recipe(Path(run).parent / "recipe.yaml", settings), Path(run),
                          ProcessGroup(int(rank), int(size)))
steps = training.batches()
for _ in range(20):
    training.update(*next(steps))
torch.save([weight.detach().cpu() for weight in training.step.weights], f"{run}.{rank}")
"""


def trained_by(size, run, *settings):
    """Train the toy recipe with some processes on the same card; return the weights of each process."""
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, run, str(size), str(rank), *settings],
                              stderr=subprocess.PIPE, text=True) for rank in range(size)]
    messages = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), messages
    return [torch.load(f"{run}.{rank}") for rank in range(size)]


@pytest.mark.skipif(torch.version.cuda is None, reason="a simulated GPU has one process")
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_two_processes_on_one_card_train_the_weights_of_one_to_the_bit(toy_recipe, tmp_path, precision):
    settings = (*FEW_STEPS, "model.dropout=0.1", "training.accumulation=2", f"training.precision={precision}")
    (expected,), (first, second) = (trained_by(size, tmp_path / f"run{size}", *settings) for size in (1, 2))
    assert all(map(torch.equal, first, expected)) and all(map(torch.equal, second, expected))


def test_graphs_are_captured_again_after_each_validation(toy_recipe, tmp_path, monkeypatch):
    recipe = toy_recipe(*FEW_STEPS, "model.dropout=0.1", "training.precision=auto", "training.max_steps=8",
                        "training.validate_every=2")
    captured, capture = [], CudaGraphs._capture
    monkeypatch.setattr(CudaGraphs, "_capture", lambda graphs, function: (
        captured.append(graphs.work), capture(graphs, function))[1])
    train(recipe, tmp_path / "with")
    assert captured.count("training") == 4
    monkeypatch.setattr(step, "CudaGraphs", lambda *_: None)
    train(recipe, tmp_path / "without")
    assert captured.count("training") == 4
    one, other = (newest_checkpoint(tmp_path / name).model for name in ("with", "without"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("waits_in", ["forward pass", "backward pass"])
def test_a_training_whose_step_cannot_be_captured_goes_on_without_graphs(toy_recipe, tmp_path, monkeypatch, capsys,
                                                                         waits_in):
    recipe = toy_recipe(*FEW_STEPS, "model.dropout=0.1", "training.precision=auto")
    expected = losses(recipe, tmp_path / "graphs")
    encode = Transformer.encode

    def waiting(numbers):
        assert numbers.isfinite().all().item()                                  # the host waits

    def encode_and_wait(model, *arguments):
        encoded, sentences = encode(model, *arguments)
        if waits_in == "forward pass":
            waiting(encoded)
        elif encoded.requires_grad:
            encoded.register_hook(waiting)                                      # the decoder's gradients exist already
        return encoded, sentences

    monkeypatch.setattr(Transformer, "encode", encode_and_wait)
    assert losses(recipe, tmp_path / "none") == expected
    assert "training without CUDA graphs, because a step could not be captured" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_the_same_training_twice_has_the_same_weights_to_the_bit(toy_recipe, tmp_path, precision):
    recipe = toy_recipe(*FEW_STEPS, f"training.precision={precision}", "model.dropout=0.1")
    one, other = (train(recipe, tmp_path / name) and newest_checkpoint(tmp_path / name).model for name in "ab")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_from_text_to_translation(toy_recipe, tmp_path):
    scores = train(toy_recipe(*FEW_STEPS, "training.precision=auto"), tmp_path / "run")
    assert 0 <= scores["small"]["bleu"].value <= 100
    lines = (tmp_path / "valid.en").read_text().splitlines()
    on_gpu, on_cpu = (Translator.load(tmp_path / "run", device, "fp32").translate(lines) for device in ("cuda", "cpu"))
    assert [best.text for best, *_ in on_gpu] == [best.text for best, *_ in on_cpu]


def random_model(seed, d_model, num_heads, vocab_size, layers=2, **options):
    """Random model with hypotheses of many lengths."""
    torch.manual_seed(seed)
    model = Transformer(source_vocab_size=vocab_size, target_vocab_size=vocab_size, d_model=d_model,
                        encoder_layers=layers, decoder_layers=layers, num_heads=num_heads, feed_forward=2 * d_model,
                        tied_embeddings="none", **options).eval()
    torch.nn.init.normal_(model.output_weight, std=2.4 / d_model**0.5)
    with torch.no_grad():
        model.output_weight[END_ID] *= 1.5
    return model


def random_source(seed, vocab_size, sentences, longest):
    """Return source, offsets and maximum lengths."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 12, sentences)
    source = generator.integers(3, vocab_size, lengths.sum())
    return (source, np.concatenate([[0], lengths.cumsum()]).astype(np.int32),
            generator.integers(1, longest, sentences).tolist())


def options_of(beam_size):
    return SearchOptions(beam_size, power_length_penalty(0.6), n_best=beam_size, banned_ids=[5, 7])


def tokens_of(found):
    return [[each.tokens for each in n_best] for n_best in found]


# The hypotheses of these seeds stay the same if a random number of up to 1e-4 is added to each logit. Beam size, seed,
# features, heads, ids.
@pytest.mark.parametrize("kind", ["host", "static", "graphs"])
@pytest.mark.parametrize(("beam_size", "seed", "d_model", "num_heads", "vocab_size"), [
    (1, 1, 16, 2, 90), (4, 4, 16, 2, 90), (12, 21, 16, 2, 90), (4, 1, 64, 16, 300)])
def test_searches_with_the_gpu_find_what_the_search_on_the_cpu_finds(beam_size, seed, d_model, num_heads, vocab_size,
                                                                     kind, capsys):
    model, options = random_model(seed, d_model, num_heads, vocab_size), options_of(beam_size)
    source, offsets, limits = random_source(seed, vocab_size, *((2, 7) if SIMULATED else (30, 40)))
    expected = search(on_host(model), source, offsets, limits, options)
    engine = torch_engine(model.to("cuda"), "fp32", "cuda")
    if kind != "host" and type(engine) is EagerEngine:
        pytest.skip("the search with kernels needs Triton and compute capability 8.0 or above")
    if kind == "static":
        engine.cuda_graphs.enabled = False
    whole_search = None if kind == "host" else engine.whole_search
    for _ in range(2):                                                          # graphs are captured, then used again
        found = search(engine, source, offsets, limits, options, whole_search=whole_search)
        assert tokens_of(found) == tokens_of(expected)
    if kind != "host":
        (storage,) = engine.storages.values()
        assert any(storage.graphs.values()) == (kind == "graphs"), capsys.readouterr().err


@pytest.mark.parametrize(("beam_size", "precision", "num_heads", "window"), [
    (4, "bf16", 8, None), (1, "bf16", 8, None), (5, "fp16", 4, 20), (12, "bf16", 16, None)])
def test_a_search_in_16_bits_finds_hypotheses_as_probable_as_the_operators_of_pytorch(beam_size, precision, num_heads,
                                                                                      window):
    d_model, num_heads, vocab_size, layers = (32, 2, 300, 1) if SIMULATED else (512, num_heads, 32_000, 3)
    model = random_model(beam_size, d_model, num_heads, vocab_size, layers, window=window)
    source, offsets, limits = random_source(beam_size, vocab_size, *((2, 7) if SIMULATED else (300, 60)))
    engine = torch_engine(model.to("cuda"), precision, "cuda")
    if type(engine) is EagerEngine:
        pytest.skip("the search with kernels needs Triton and compute capability 8.0 or above")
    options, eager = options_of(beam_size), EagerEngine(model, precision, torch.device("cuda"))

    def find(engine):
        return search(engine, source, offsets, limits, options, engine.whole_search)

    first, later = find(engine), find(engine)
    assert engine.cuda_graphs.enabled
    engine.cuda_graphs.enabled = False
    engine.delete_graphs()
    assert tokens_of(find(engine)) == tokens_of(first) == tokens_of(later)
    means = [np.mean([n_best[0].log_probability for n_best in found]) for found in (first, find(eager))]
    assert means[0] == pytest.approx(means[1], rel=0.02)


def test_two_engines_in_two_threads_keep_their_graphs():
    if SIMULATED:
        pytest.skip("a simulated GPU has one thread")
    engines = [torch_engine(random_model(seed, 128, 2, 2_000).to("cuda"), "bf16", "cuda") for seed in (1, 2)]
    if type(engines[0]) is EagerEngine:
        pytest.skip("the search with kernels needs Triton and compute capability 8.0 or above")

    def translate(engine):
        # Captures graphs, and deletes them when the caches grow.
        for number in range(25):
            search(engine, *random_source(number, 2_000, 1 + 7 * number, 40), options_of((4, 5)[number % 2]),
                   engine.whole_search)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(translate, engines))
    assert all(engine.cuda_graphs.enabled for engine in engines)


def test_a_second_gpu_searches_while_the_first_one_is_the_current_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("only one GPU")
    model, found = random_model(4, 16, 2, 90), []
    for device in ("cuda:0", "cuda:1"):
        engine = torch_engine(model.to(device), "fp32", device)
        for _ in range(2):
            found.append(tokens_of(search(engine, *random_source(4, 90, 30, 40), options_of(4), engine.whole_search)))
        assert type(engine) is EagerEngine or engine.cuda_graphs.enabled
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_layers_in_fp32_are_fp32(cell):
    side = EncodedSide.from_lists(np.random.default_rng(1).integers(4, 99, (11, 29)).tolist())
    batch = gather(EncodedCorpus(side, side), np.arange(11)).to(torch.device("cuda"))
    section = RecurrentSection(cell=cell, d_model=64 if SIMULATED else 256, num_heads=1, encoder_layers=1,
                               decoder_layers=1, dropout=0.0)
    model = torch_engine(build_model(section, 99, 99), "fp32", "cuda").model
    with torch.no_grad():
        found, expected = model(batch).dense(), copy.deepcopy(model).double()(batch).dense()
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5          # in TF32, 1e-4 to 1e-3


def test_translations_with_graphs_equal_those_without(toy_recipe, tmp_path):
    train(toy_recipe(*FEW_STEPS), tmp_path / "run")
    lines = (tmp_path / "valid.en").read_text().splitlines()
    for precision in ("fp32", "auto"):
        with_graphs, without = (Translator.load(tmp_path / "run", "cuda", precision) for _ in range(2))
        if type(without.engine) is EagerEngine:
            pytest.skip("the search with kernels needs Triton and compute capability 8.0 or above")
        without.engine.cuda_graphs.enabled = False
        for beam_size in (1, 4):
            found, expected = (translator.translate(lines, beam_size=beam_size, n_best=beam_size)
                               for translator in (with_graphs, without))
            assert [[(each.text, each.log_probability) for each in n_best] for n_best in found] == [
                [(each.text, pytest.approx(each.log_probability, abs=1e-3)) for each in n_best] for n_best in expected]
        assert with_graphs.engine.cuda_graphs.enabled


def test_after_a_failed_capture_the_gpu_goes_on_without_graphs(capsys):
    total = torch.zeros(2, device="cuda")
    graphs, waiting, made = CudaGraphs(total.device), [], {}

    def function():
        total.add_(1)
        waiting.append(total.sum().item())

    for count in range(1, 5):
        graphs.run(function, "key", made)
        assert total.tolist() == [count, count]
    assert waiting == [2, 4, 6, 8] and not graphs.enabled
    assert "without CUDA graphs, because a step could not be captured" in capsys.readouterr().err
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.manual_seed(1)
    drawn = torch.rand(3, device="cuda")                                        # the generator draws outside of graphs
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)
