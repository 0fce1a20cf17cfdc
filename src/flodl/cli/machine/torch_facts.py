"""Query torch in a child process, so that a torch that crashes affects only the child."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

TIMEOUT_S = 180  # the first import from a network drive is slow

# Runs in a different Python, which may not have flodl.
_SCRIPT = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # not from the working directory
import json
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


def query_torch(python: str | Path) -> dict[str, Any]:
    """Return the versions, devices and architectures of that Python's torch, and `error` if this fails.

    >>> query_torch("/no/such/python")
    {'error': '/no/such/python cannot be started: No such file or directory'}
    """
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONIOENCODING": "utf-8"}
    command = [str(python), "-c", _SCRIPT]
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "encoding": "utf-8", "errors": "replace"}
    try:
        done = subprocess.run(command, env=environment, timeout=TIMEOUT_S, **pipes)
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch took more than {TIMEOUT_S} s"}
    except OSError as error:
        return {"error": f"{python} cannot be started: {error.strerror or error}"}
    lines = done.stdout.strip().splitlines()
    try:
        facts = json.loads(lines[-1])
    except (IndexError, ValueError):
        errors = done.stderr.strip().splitlines()
        reason = errors[-1] if errors else "no output"
        return {"error": f"importing torch ended the process with code {done.returncode}: {reason}"}
    return facts if isinstance(facts, dict) else {"error": "the query of torch printed no JSON object"}


def compute_capabilities(archs: list[str]) -> list[str]:
    """Convert torch's list of architectures to compute capabilities.

    >>> compute_capabilities(["sm_75", "sm_90a", "compute_120"])
    ['7.5', '9.0', '12.0+PTX']
    """
    found = []
    for entry in archs:
        kind, _, number = entry.partition("_")
        digits = "".join(character for character in number if character.isdigit())
        if len(digits) >= 2:
            found.append(f"{digits[:-1]}.{digits[-1]}" + ("+PTX" if kind == "compute" else ""))
    return found
