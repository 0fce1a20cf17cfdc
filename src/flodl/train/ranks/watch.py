"""What happens while the supervisor waits for ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flodl.distributed.supervisor import Supervisor

from ..run import Run
from .recorder import Recorder

_POLL_S = 0.05


@contextmanager
def watched(run: Run, supervisor: Supervisor, recorder: Recorder) -> Iterator[None]:
    """Stop the supervisor after a signal or `trainer.stop()`; it waits for ranks and does not see them.

    Meanwhile, pass on what was recorded and not yet shown.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            recorder.flush_if_due()
            if run.stop_request or run.session.stop_reason:
                supervisor.stop(run.stop_request.signal or run.session.stop_reason)
                return

    thread = threading.Thread(target=watch, name="flodl-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
