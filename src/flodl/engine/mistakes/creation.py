"""What to write in place of arguments and attributes that a `TrainStep` does not have."""

from __future__ import annotations

from dataclasses import fields

from ..settings import StepSettings

EXAMPLE = "Write TrainStep(model, optimizer, step_fn), with def step_fn(model, x, y) that returns the loss."
_LOSS = "The loss is computed by the step function: def step_fn(model, x, y): return loss_fn(model(x), y)."

# Names that other frameworks use, and what to write here.
ELSEWHERE = {
    **dict.fromkeys(
        ("lr", "learning_rate"),
        "The learning rate belongs to the optimizer: torch.optim.AdamW(model.parameters(), lr=1e-3).",
    ),
    **dict.fromkeys(("loss", "loss_fn", "criterion"), _LOSS),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "Write schedule=…, with a schedule of flodl.optim."),
    **dict.fromkeys(("gradient_clip_val", "grad_clip", "max_grad_norm", "max_norm"), "Write clip_norm=…."),
    **dict.fromkeys(
        ("accumulate_grad_batches", "gradient_accumulation_steps", "accumulation_steps"),
        "Write accumulate=….",
    ),
    **dict.fromkeys(
        ("amp", "fp16", "bf16", "mixed_precision", "autocast", "dtype"), "Write precision='bf16'."
    ),
    **dict.fromkeys(
        ("compile", "jit", "torch_compile"),
        "Choose a tier: tier='compiled', or tier='auto', the default, which compiles if that is faster.",
    ),
    **dict.fromkeys(
        ("scaler", "grad_scaler", "loss_scale"), "Write precision='fp16', which scales the loss."
    ),
    "ema": "Write Trainer(…, ema=0.999), or update torch.optim.swa_utils.AveragedModel after each step.",
    "device": "Leave it out: a step runs where the model is. Move it with model.to(device) before.",
}

_RATE = (
    "Set group['lr'] for each group in optimizer.param_groups, or pass a schedule of flodl.optim: "
    "TrainStep(…, schedule=…); step.schedule.scale(factor) multiplies its rates."
)
INSTEAD = {
    **dict.fromkeys(("lr", "learning_rate"), _RATE),
    "model": "Load values into it with model.load_state_dict(…), or create a new TrainStep.",
    "optimizer": "Change its settings in optimizer.param_groups, or create a new TrainStep.",
}
# Names of others that nobody assigns to a step for a purpose of their own.
ASSIGNED_ELSEWHERE = {
    name: f"{advice} A step keeps what it was created with."
    for name, advice in ELSEWHERE.items()
    if name not in ("loss", "device", "dtype")
}
_SETTINGS = frozenset(field.name for field in fields(StepSettings))


def how_to_read(name: str) -> str:
    """Return where to find an argument of a step."""
    if name in ("lr", "learning_rate"):
        return "The rate is optimizer.param_groups[0]['lr']."
    return f"It is step.settings.{name}." if name in _SETTINGS else "Keep the object that you pass."
