"""NVIDIA MPS: processes on one GPU run at the same time, each with a share of its multiprocessors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CONTROL = "nvidia-cuda-mps-control"
_PIPE, _LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# With 30, 40, 60, 66, 70, 75 and 80 %, bf16 matmuls of torch 2.11 return wrong results on an H200.
BF16_SHARES = (25, 50, 90, 100)
_START_S, _PROBE_S, _QUIT_S = 20.0, 90.0, 20.0
_PROBE = (
    "import torch; torch.zeros(8, device='cuda').sum().item(); "
    "print(torch.cuda.get_device_properties(0).multi_processor_count)"
)


class MpsError(Exception):
    """MPS cannot be used; says why."""


def wrong_shares(shares: Sequence[int], precision: str) -> str:
    """Return why matmuls may be wrong with these shares, or nothing.

    >>> wrong_shares([90, 25], "bf16"), wrong_shares([60, 25], "fp32")
    ('', '')
    >>> wrong_shares([60, 25], "bf16")
    '--shares has 60: with such a share, bf16 matmuls under MPS may return wrong results. ...'
    """
    wrong = [share for share in shares if share not in BF16_SHARES]
    if precision != "bf16" or not wrong:
        return ""
    return (
        f"--shares has {', '.join(map(str, wrong))}: with such a share, bf16 matmuls under MPS may return "
        f"wrong results. Use {', '.join(map(str, BF16_SHARES))}, where they are right, or --precision fp32."
    )


@contextmanager
def mps(shares: Sequence[int]) -> Iterator[list[int]]:
    """Run an MPS daemon for this process and those that it starts; yield the multiprocessors of each share.

    This process must not have used CUDA before. The daemon is stopped at the end, whatever happens.
    """
    with tempfile.TemporaryDirectory(prefix="flodl-mps-", ignore_cleanup_errors=True) as folder:
        variables = {_PIPE: f"{folder}/pipe", _LOG: f"{folder}/log"}
        for path in variables.values():
            Path(path).mkdir()
        os.environ.update(variables)
        # SIGTERM would end this process without stopping the daemon.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            _start()
            yield _probe(shares, Path(folder) / "log")
        finally:
            _stop()
            for name in variables:
                os.environ.pop(name, None)


def _start() -> None:
    try:
        done = subprocess.run([CONTROL, "-d"], capture_output=True, text=True, timeout=_START_S, check=False)
    except FileNotFoundError:
        raise MpsError(f"{CONTROL} is not installed") from None
    except subprocess.TimeoutExpired:
        raise MpsError(f"{CONTROL} -d did not return within {_START_S:g} s") from None
    if done.returncode:
        raise MpsError(
            f"{CONTROL} -d ended with code {done.returncode}: {(done.stderr or done.stdout).strip()}"
        )


def _probe(shares: Sequence[int], logs: Path) -> list[int]:
    """Use CUDA in one process per share: the first one starts the server."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROBE],
            env=os.environ | {SHARE: str(share)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=_PROBE_S)
            if process.returncode:
                raise MpsError(f"CUDA fails under MPS: {err.strip()[-500:]}\n{_tail(logs)}")
            found.append(int(out))
    except subprocess.TimeoutExpired:
        raise MpsError(f"CUDA did not answer under MPS within {_PROBE_S:g} s\n{_tail(logs)}") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def _tail(logs: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-500:]}" for path in logs.glob("*"))


def _stop() -> None:
    """Ask the daemon to quit; it ends its server. Without a daemon, nothing happens."""
    try:
        subprocess.run(
            [CONTROL], input="quit -t 5\n", capture_output=True, text=True, timeout=_QUIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"MPS was not stopped: {error}", file=sys.stderr)


@contextmanager
def maybe_mps(shares: Sequence[int], *, wanted: bool) -> Iterator[list[int]]:
    """The same, or an empty list and a message if MPS cannot be used."""
    if not wanted:
        yield []
        return
    context = mps(shares)
    try:
        found = context.__enter__()
    except MpsError as error:
        print(f"MPS CANNOT BE USED: {error}\nProcesses share the GPU by time slicing instead.", flush=True)
        yield []
        return
    names = ", ".join(f"{share} % = {num} multiprocessors" for share, num in zip(shares, found))
    print(f"MPS: {names}", flush=True)
    try:
        yield found
    finally:
        context.__exit__(None, None, None)
