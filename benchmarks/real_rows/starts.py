"""The first and the second start of the same program: how long until the fast step runs?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from .measure import CALLS, Sizes, flodl_step, torch_step
from .models import MODELS

RIVALS = ("flodl auto", "torch reduce-overhead")
LIMIT_S = 300.0


def both_starts(script: str, name: str, device: str, *, quick: bool) -> dict[str, Any]:
    """Start each rival twice with an empty compiler cache of its own, alone on the machine."""
    found: dict[str, Any] = {}
    for rival in RIVALS:
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "FLODL_HOME": f"{cache}/flodl"}
            command = [sys.executable, script, "--start", rival, "--rows", name, "--device", device]
            command += ["--quick"] * quick
            answers = []
            for _ in range(2):
                done = subprocess.run(
                    command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
                )
                lines = done.stdout.splitlines()
                answers.append(json.loads(lines[-1]) if done.returncode == 0 and lines else None)
            found[rival] = {"first": answers[0], "second": answers[1]}
    return found


def start(name: str, rival: str, device: str, *, quick: bool) -> dict[str, Any]:
    """Train in this process until the fast step runs; return the seconds since the first step began."""
    sizes, model = Sizes(device, quick, 1), MODELS[name]
    if rival.startswith("torch"):
        step: Any = torch_step(sizes, model, "reduce-overhead" if device == "cuda" else "default")
        began = time.perf_counter()
        for _ in range(4):
            step()
        _wait()
        return {"ready_s": time.perf_counter() - began, "tier": "compiled"}
    flodl, batch = flodl_step(sizes, model, "auto")
    began = time.perf_counter()
    while flodl.tier != "compiled" and time.perf_counter() - began < LIMIT_S - 60:
        for _ in range(CALLS):
            flodl(batch)
        _wait()
    taken, report = time.perf_counter() - began, flodl.report()
    flodl.close()
    return {"ready_s": taken, "tier": report.tier, "reason": report.reason, "steps": report.steps}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
