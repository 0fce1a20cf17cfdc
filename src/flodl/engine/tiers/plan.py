"""Which tiers a step tries, in order."""

from __future__ import annotations

from ..compile.policy import COMPILE_AFTER_S
from ..program.program import StepBody
from ..settings import Tier


def plan_tiers(body: StepBody) -> tuple[list[Tier], str]:
    """Return the tiers to try, in order, or none and the reason."""
    wanted, device = body.settings.tier, body.device.type
    if wanted == "eager":
        return [], "tier='eager' was requested"
    if device == "cuda" and not body.undo.knows_carried:
        return [], "a module that is not a graph carries values from call to call, which cannot be fed back"
    if wanted == "auto" and device not in COMPILE_AFTER_S:
        return [], f"the model is on {device}, where no faster tier is supported yet"
    planned: dict[str, list[Tier]] = {
        "auto": ["captured", "compiled"] if device == "cuda" else ["compiled"],
        "captured": ["captured"] if device == "cuda" else [],
        "compiled": ["compiled"],
    }
    return planned[wanted], "" if planned[wanted] else f"the model is on {device}, and capture needs CUDA"
