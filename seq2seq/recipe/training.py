"""The `training` section of a recipe."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from seq2seq.recipe.section import Section, Share


class Average(Section):
    """Averaging of checkpoints at the end of training."""

    kind: Literal["none", "last", "best"] = "none"
    """Average no checkpoints, the newest ones, or those with the best validation scores."""
    count: PositiveInt = 5
    """How many checkpoints are averaged; as many are kept until then."""


class TrainingSection(Section):
    """How the model is trained."""

    start_from: str | None = None
    """Another model, a run or a bundle (one that was imported, too), whose weights the training starts from:
    fine-tuning. Its tokenizer is taken over, and so is its `model` section where the recipe says nothing."""
    batch_tokens: Annotated[int, Field(gt=0, le=100_000_000)] = 4096
    """Target tokens per optimizer step."""
    accumulation: Annotated[int, Field(gt=0, le=1_000_000)] = 1
    """Parts in which a step is computed. More parts need less memory; the result is the same."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Adam, or Adam with decoupled weight decay, or Muon for the matrices of the layers and AdamW for the rest."""
    learning_rate: PositiveFloat = 7.0e-4
    """Learning rate at the end of the warm-up, its highest."""
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    """Decay of Adam's running means of the gradient and of its square."""
    epsilon: PositiveFloat = 1.0e-9
    """Adam's epsilon."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; 0 turns it off."""
    warmup_steps: NonNegativeInt = 4000
    """Steps in which the learning rate rises linearly from 0."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """How the learning rate falls after the warm-up; `linear` and `cosine` reach 0 at `max_steps`."""
    max_steps: PositiveInt = 100_000
    """Optimizer steps of the whole training."""
    gradient_clip: NonNegativeFloat = 1.0
    """Longest gradient: longer ones are scaled to this norm. 0 turns it off."""
    label_smoothing: Share = 0.1
    """Probability that the training target gives to all words alike. Not set in a `pointer`, or with `model.copy`: 0,
    which they need."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Numbers of the computation, and of the translations of validation and test; `auto` is bf16 on GPUs and CPUs that
    have it in hardware, else fp32. Weights, their gradients' sums and the validation loss are fp32 in any case."""
    validate_every: PositiveInt = 500
    """Steps between validations."""
    valid_sentences: PositiveInt | None = None
    """Translate only the first so many validation sentences for BLEU. Not set: all."""
    best_metric: Literal["bleu", "chrf", "exact", "loss", "perplexity"] = "bleu"
    """Validation score that decides which model is best: one of `metrics` but TER, or `loss` or `perplexity`. Not set:
    `bleu`, or else the first of `metrics`; of a language model, which has the last two only, `perplexity`."""
    early_stopping: NonNegativeInt = 0
    """Stop after this many validations without improvement; 0 never does."""
    keep_checkpoints: PositiveInt = 3
    """Newest checkpoints that are kept."""
    checkpoint_minutes: Annotated[float, Field(ge=0, le=2)] = 2.0
    """Most minutes of work that a crash may lose. 0 saves after each step."""
    average: Average = Average()
    """Averaging of checkpoints at the end of training."""
    ema_decay: Share = 0.0
    """Decay of a running mean of the weights, which is then validated and kept as the model; 0 turns it off."""
    divergence: Literal["stop", "lower_rate"] = "stop"
    """What follows when the loss blows up, or many steps in a row have no finite gradient: `stop` explains it,
    `lower_rate` goes back to the last good checkpoint and halves the learning rate."""
    log_every: PositiveInt = 50
    """Steps between lines of the log."""
    device: str = "auto"
    """Where the training computes: `cpu`, `cuda`, `cuda:1`, …; `auto` is a GPU if there is one."""
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None
    """Threads of a computation on the CPU. Not set: torch decides."""
