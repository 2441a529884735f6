"""Models whose sublayers run in Triton kernels: the same losses and gradients as by PyTorch's operators."""

import copy

import numpy as np
import pytest
import torch
from cases_models import LONGEST, built, corpus_for, trained_step
from simulation import SimulatedGPU

from seq2seq.data.batching import Shape, gather
from seq2seq.inference.cuda_graphs import CudaGraphs
from seq2seq.model import layers, transformer
from seq2seq.model.consistency import two_passes
from seq2seq.model.kernels import residual_norm

SIZES = {"num_heads": 2, "feed_forward": 24}
# Every way in which a model uses the residual stream.
MODELS = {
    "post-norm": SIZES,
    "pre-norm": {**SIZES, "norm": "pre", "activation": "gelu", "positions": "learned"},
    "6 layers": {**SIZES, "encoder_layers": 6, "decoder_layers": 6, "activation": "silu"},
    "6 layers, pre-norm": {**SIZES, "encoder_layers": 6, "decoder_layers": 6, "norm": "pre"},
    "tied layers": {**SIZES, "decoder_layers": 3, "tied_decoder_layers": True, "norm": "pre"},
    "hard attention": {**SIZES, "selection": "hard"},
    "structured attention": {**SIZES, "selection": "structured", "norm": "pre"},
    "copy mechanism": {**SIZES, "copy": True, "norm": "pre"},
    "hierarchical context": {**SIZES, "context": "hierarchical"},
    "language model": {"type": "language_model", **SIZES},
}
QUICK = ("post-norm", "pre-norm", "tied layers", "language model")
EVERY_MODEL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]


@pytest.fixture
def kernels_in_fp32(monkeypatch):
    """The kernels run in fp32, too, where results can be compared."""
    for module in (layers, transformer):
        monkeypatch.setattr(module, "usable_in_16_bits", lambda tensor: tensor.is_cuda)


def batch_for(keys):
    corpus = corpus_for(keys.get("type"))
    pairs = np.arange(len(corpus))
    return gather(corpus, pairs, Shape.of(corpus, pairs).rounded(), LONGEST)


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_losses_and_all_gradients_equal_those_of_the_operators(name, kernels_in_fp32):
    batch, model = batch_for(MODELS[name]), built(MODELS[name])
    expected = trained_step(copy.deepcopy(model), batch)
    with torch.inference_mode():
        likelihood = copy.deepcopy(model).eval().loss(batch).of_tokens
    with SimulatedGPU() as gpu:
        on_gpu, moved = copy.deepcopy(model).to("cuda"), batch.to(torch.device("cuda"))
        found = trained_step(on_gpu, moved)
        launched = gpu.record.operators.copy()
        with torch.inference_mode():
            scored = on_gpu.eval().loss(moved).of_tokens.cpu()
    assert launched["_norm_forward"] == launched["_norm_backward"] > 0
    # The matrix product computes relu.
    assert launched["_activation_forward"] + launched["aten._addmm_activation.default"] \
        == launched["_activation_backward"] > 0
    assert launched["_embed"] == launched["_gradient_of_rows"] > 0 and launched["_column_sums"] > 0
    assert found[:2] == pytest.approx(expected[:2], rel=1e-5)
    torch.testing.assert_close(scored, likelihood, atol=1e-5, rtol=1e-5)
    for weight, gradient in expected[2].items():
        torch.testing.assert_close(found[2][weight], gradient, atol=1e-5 * max(1, gradient.abs().max().item()),
                                   rtol=1e-5, msg=weight)


def test_kernels_need_16_bits_and_a_gpu_that_has_them():
    for capability, dtype, used in (((9, 0), torch.bfloat16, True), ((9, 0), torch.float32, False),
                                    ((7, 5), torch.float16, False)):
        with SimulatedGPU(capability) as gpu:
            trained_step(built(SIZES).to("cuda").to(dtype), batch_for(SIZES).to(torch.device("cuda")))
            assert bool(gpu.record.operators["_norm_forward"]) == used


# Dropout


def dropping(**keys):
    """A model on the GPU that trains with dropout, and a batch."""
    model = built({**SIZES, "dropout": 0.3, **keys}).to("cuda").to(torch.bfloat16).train()
    return model, batch_for(SIZES).to(torch.device("cuda"))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_seed_gives_the_same_losses_and_gradients_to_the_bit(gpu, norm):
    model, batch = dropping(norm=norm)
    losses, gradients = [], []
    for seed in (1, 1, 2):
        model.zero_grad()
        *loss, gradient = trained_step(model, batch, seed)
        losses.append(loss)
        gradients.append(gradient)
    assert losses[0] == losses[1] != losses[2]
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


@pytest.mark.parametrize("together", [False, True])
def test_the_two_passes_of_consistency_training_have_different_masks(gpu, together):
    model, batch = dropping()
    first, second = (output.hidden for output in two_passes(model, batch, batch, together))
    assert not torch.isclose(first, second).all(1).any().item()


def test_evaluation_drops_nothing(gpu):
    model, batch = dropping()
    model.eval()
    assert model(batch).hidden.equal(model(batch).hidden)
    assert not any("random" in name for name in gpu.record.operators)


@pytest.mark.parametrize(("keys", "masks"), [({}, 2), ({"norm": "pre"}, 2), (
    {"norm": "pre", "decoder_layers": 3, "tied_decoder_layers": True}, 2)])
def test_every_sublayer_of_a_pass_has_a_mask_of_its_own(gpu, monkeypatch, keys, masks):
    model, batch = dropping(**keys)
    drawn, kernel = [], residual_norm.residual_norm

    def recorded(*arguments):
        drawn.append((arguments[-2].item(), arguments[-1]))
        return kernel(*arguments)

    monkeypatch.setattr(residual_norm, "residual_norm", recorded)
    model(batch)
    sublayers = 2 + 3 * keys.get("decoder_layers", 1)
    assert len(set(drawn)) == sublayers and len({seed for seed, _ in drawn}) == masks
    assert all(number > 0 for _, number in drawn)                               # 0 is the mask of the embedding


def test_a_graph_draws_new_masks_and_computes_what_direct_execution_does(gpu):
    model, batch = dropping(norm="pre")
    graphs, captured = CudaGraphs(torch.device("cuda", 0)), {}
    hidden = torch.empty_like(model(batch).hidden)

    def run():
        hidden.copy_(model(batch).hidden.detach())

    found = []
    for seed in (5, 5, 5, None):                                                # direct, captured, replayed
        if seed is not None:
            torch.manual_seed(seed)
        graphs.run(run, "pass", captured)
        found.append(hidden.cpu())
    assert captured["pass"].replays == 3 and found[0].equal(found[1]) and found[1].equal(found[2])
    assert not torch.isclose(found[3], found[2]).all(1).any()
