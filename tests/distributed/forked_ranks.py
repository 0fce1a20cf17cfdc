"""Ranks that are forked from a process that has imported torch already, which takes seconds."""

import os
import select
import signal
import socket
import subprocess
import sys

from flodl.distributed.ranks import Link

TEMPLATE = """
import os, signal, socket, sys
sys.path[:] = {path!r}
import cloudpickle, torch
from flodl.distributed.ranks.main import main
torch.set_num_threads(1)
{warm_up}
control = socket.socket(fileno={handle})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
template = os.getpid()
control.send(b"ready")
while True:
    data, handles, _, _ = socket.recv_fds(control, 1, 1)
    if not data:
        break
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            main(handles[0], template)
            code = 0
        finally:
            os._exit(code)
    os.close(handles[0])
    control.send(str(pid).encode())
"""


class ForkedRank:
    """A rank that the template process forked. Its exit code is not known."""

    def __init__(self, pid, connected):
        self.pid, self.host = pid, socket.gethostname()
        self.link = Link(connected)
        self.sentinel = os.pidfd_open(pid)

    def exit_reason(self):
        return "its process ended" if select.select([self.sentinel], [], [], 0)[0] else None

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        select.select([self.sentinel], [], [], 1.0)

    def close(self):
        self.link.close()
        os.close(self.sentinel)


class ForkLauncher:
    """Starts ranks; `warm_up` is code that imports what they need in the template process."""

    def __init__(self, warm_up):
        self._own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = TEMPLATE.format(path=sys.path, handle=other.fileno(), warm_up=warm_up)
        self._process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[other.fileno()])
        other.close()
        assert self._own.recv(16) == b"ready"

    def start(self, spec):
        own, other = socket.socketpair()
        with other:
            socket.send_fds(self._own, [b"r"], [other.fileno()])
            return ForkedRank(int(self._own.recv(16)), own)

    def close(self):
        self._own.close()
        self._process.kill()  # it has nothing to clean up, which takes seconds
        self._process.wait()
