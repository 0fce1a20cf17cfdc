"""Where does a training step of a real model spend its time on the GPU?

    python benchmarks/profile_kernels.py --rows ViT-B [--rival "flodl compiled"] [--top 40]

The models of `real_models.py`. Prints the kernels of one step by total time, and the part of each group:
matmuls, attention, fused kernels of the compiler, copies. Processes that run at the same time compile side by
side and are profiled one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from harness import table
from real_rows.measure import CALLS, Sizes, in_flodl, in_torch
from real_rows.models import MODELS

GROUPS = {
    "attention": r"flash|fmha|attention|efficient|sdpa|cudnn_generated",
    "matmul": r"gemm|cutlass|nvjet|wgmma|splitK|xmma|triton_tem|_mm_",
    "convolution": r"conv|implicit|dgrad|wgrad|fprop",
    "optimizer": r"adam|multi_tensor|foreach",
    "fused": r"^triton_",
    "copies": r"memcpy|memset|copy",
}


def group_of(kernel: str) -> str:
    """Return the first group whose expression matches the name of a kernel."""
    found = (name for name, words in GROUPS.items() if re.search(words, kernel, re.IGNORECASE))
    return next(found, "other")


def profile(name: str, rival: str, top: int) -> dict[str, Any]:
    """Bring one rival to its fast step; return its kernels with their microseconds in a step."""
    sizes, model = Sizes("cuda", False, 1), MODELS[name]
    side, _, mode = rival.partition(" ")
    made = in_flodl(sizes, model, mode) if side == "flodl" else in_torch(sizes, model, mode)
    made.run()
    # Others may share the device while they compile, but not while kernels are measured.
    with (Path(tempfile.gettempdir()) / "flodl-profile.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made.run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            made.run()
            torch.cuda.synchronize()
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name].append(event.device_time)
    groups: dict[str, list[float]] = defaultdict(list)
    for kernel, times in kernels.items():
        groups[group_of(kernel)] += times
    ranked = sorted(kernels, key=lambda kernel: -sum(kernels[kernel]))[:top]
    return {
        "model": name,
        "rival": rival,
        "facts": dict(made.facts()),
        "groups": {group: [sum(times) / CALLS, len(times) / CALLS] for group, times in groups.items()},
        "kernels": {
            kernel: [sum(kernels[kernel]) / CALLS, len(kernels[kernel]) / CALLS] for kernel in ranked
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", required=True, help="regular expression for the name of one model")
    parser.add_argument("--rival", default="flodl compiled", help='or "torch reduce-overhead", and so on')
    parser.add_argument("--top", type=int, default=40, help="kernels that are listed")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    (name,) = [name for name in MODELS if re.search(options.rows, name)]
    found = profile(name, options.rival, options.top)
    for part in ("groups", "kernels"):
        rows = [
            [f"{micros:.0f}", f"{count:g}", words[:120]]
            for words, (micros, count) in sorted(found[part].items(), key=lambda item: -item[1][0])
        ]
        print(table(["µs per step", "launches", f"{name}, {options.rival}: {part}"], rows))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
