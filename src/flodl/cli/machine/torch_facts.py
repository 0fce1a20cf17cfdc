"""What torch says about itself, asked in a child process: a torch that crashes harms only the child."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ANSWER_WITHIN_S = 180  # a first import from a network drive takes its time

# Runs in another Python, which may have no flodl.
_QUESTION = """
import json, sys
facts = {}
try:
    import torch
    facts = {"version": torch.__version__, "path": torch.__path__[0]}
    facts["cuda"], facts["hip"] = torch.version.cuda, getattr(torch.version, "hip", None)
    usable = torch.cuda.is_available()
    facts["gpu_usable"] = usable
    facts["code_for"] = torch.cuda.get_arch_list() if usable or facts["cuda"] else []
    facts["cudnn"] = torch.backends.cudnn.version() if facts["cuda"] else None
    facts["mps_usable"] = torch.backends.mps.is_available()
    facts["num_threads"] = torch.get_num_threads()
    facts["gpus"] = []
    for index in range(torch.cuda.device_count() if usable else 0):
        device = torch.cuda.get_device_properties(index)
        fact = {"name": device.name, "memory_bytes": device.total_memory}
        fact["capability"] = "%d.%d" % (device.major, device.minor)
        facts["gpus"].append(fact)
except BaseException as error:
    facts["error"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("\\n" + json.dumps(facts) + "\\n")
"""


def ask_torch(python: str | Path) -> dict[str, Any]:
    """Give what the torch of that Python says: versions, devices, code; `error` if it cannot say it all.

    >>> import sys
    >>> ask_torch(sys.executable)["version"]
    '2...'
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONIOENCODING": "utf-8"}
    command = [str(python), "-c", _QUESTION]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "encoding": "utf-8", "errors": "replace"}
    try:
        done = subprocess.run(command, env=environment, timeout=ANSWER_WITHIN_S, **pipes)
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch took more than {ANSWER_WITHIN_S} s"}
    except OSError as error:
        return {"error": f"{python} cannot be started: {error.strerror or error}"}
    lines = done.stdout.strip().splitlines()
    try:
        facts = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else "it says nothing"
        return {"error": f"importing torch ended the process with {done.returncode}: {why}"}
    return facts if isinstance(facts, dict) else {"error": "torch gave no facts"}


def capabilities(code_for: list[str]) -> list[str]:
    """Turn torch's list of architectures into compute capabilities.

    >>> capabilities(["sm_75", "sm_90a", "compute_120"])
    ['7.5', '9.0', '12.0+PTX']
    """
    found = []
    for entry in code_for:
        kind, _, number = entry.partition("_")
        digits = "".join(character for character in number if character.isdigit())
        if len(digits) >= 2:
            found.append(f"{digits[:-1]}.{digits[-1]}" + ("+PTX" if kind == "compute" else ""))
    return found
