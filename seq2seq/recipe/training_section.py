"""The `training` section of a recipe."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from seq2seq.recipe.base_section import Section, Share


class Average(Section):
    """Averaging of checkpoints at the end of training."""

    kind: Literal["none", "last", "best"] = "none"
    """Checkpoints to average: none, the newest ones, or those with the best validation scores."""
    count: PositiveInt = 5
    """Number of checkpoints to average; training keeps as many on disk."""


class TrainingSection(Section):
    """Optimizer, batches, validation and checkpoints."""

    start_from: str | None = None
    """Fine-tune this model, a run or a bundle (imported models included): training starts from its weights and uses
    its tokenizer. Its `model` section provides the values that the recipe leaves out."""
    batch_tokens: Annotated[int, Field(gt=0, le=100_000_000)] = 4096
    """Target tokens per optimizer step."""
    accumulation: Annotated[int, Field(gt=0, le=1_000_000)] = 1
    """Micro-batches per optimizer step. More of them need less memory; the result is the same."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Adam, or Adam with decoupled weight decay, or Muon for the matrices of the layers and AdamW for the rest."""
    learning_rate: PositiveFloat = 7.0e-4
    """Peak learning rate, reached at the end of the warm-up."""
    betas: Annotated[tuple[Share, Share], Field(strict=False)] = (0.9, 0.98)
    """Adam's decay rates of the running means of the gradient and of its square."""
    epsilon: PositiveFloat = 1.0e-9
    """Adam's epsilon."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; 0 turns it off."""
    warmup_steps: NonNegativeInt = 4000
    """Steps in which the learning rate rises linearly from 0."""
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    """Learning rate schedule after the warm-up; `linear` and `cosine` reach 0 at `max_steps`."""
    max_steps: PositiveInt = 100_000
    """Number of optimizer steps of the whole training."""
    gradient_clip: NonNegativeFloat = 1.0
    """Largest norm of the gradient; longer gradients are scaled down to it. 0 turns it off."""
    label_smoothing: Share = 0.1
    """Probability that label smoothing spreads evenly over the vocabulary. Not set in a `pointer`, or with
    `model.copy`: 0, which they need."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of training and of the translations in validation and test; `auto` is bf16 on GPUs and CPUs that
    have it in hardware, else fp32. Weights, accumulated gradients and the validation loss are always fp32."""
    validate_every: PositiveInt = 500
    """Steps between validations."""
    valid_sentences: PositiveInt | None = None
    """Number of validation sentences to translate for BLEU, from the first. Not set: all."""
    best_metric: Literal["bleu", "chrf", "exact", "loss", "perplexity"] = "bleu"
    """Validation score that selects the best model: one of `metrics` except TER, or `loss` or `perplexity`. Not set:
    `bleu`, or else the first of `metrics`; for a language model, which has only the last two, `perplexity`."""
    early_stopping: NonNegativeInt = 0
    """Stop after this many validations without improvement; 0 turns it off."""
    keep_checkpoints: PositiveInt = 3
    """Number of newest checkpoints to keep."""
    checkpoint_minutes: Annotated[float, Field(ge=0, le=2)] = 2.0
    """Minutes between checkpoints, the most work that a crash can lose. 0 saves after each step."""
    average: Average = Average()
    """Averaging of checkpoints at the end of training."""
    ema_decay: Share = 0.0
    """Decay of the exponential moving average of the weights, which is validated and saved as the model; 0 turns it
    off."""
    divergence: Literal["stop", "lower_rate"] = "stop"
    """Reaction when the loss blows up, or the gradients of many steps in a row are not finite: `stop` ends the training
    with an explanation, `lower_rate` goes back to the last good checkpoint and halves the learning rate."""
    log_every: PositiveInt = 50
    """Steps between lines of the log."""
    device: str = "auto"
    """Device of the training: `cpu`, `cuda`, `cuda:1`, …; `auto` is a GPU if there is one."""
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None
    """Number of CPU threads. Not set: torch decides."""
