"""Programs that are forked from a Python that has imported torch already, which takes seconds.

Only torch's own modules are imported there: what a program uses of flodl, it imports itself.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# torch imports its compiler on the first use of an optimizer.
TEMPLATE = """
import json, os, runpy, signal, sys
import torch, torch._dynamo
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    os._exit(0)
os.setsid()
signal.alarm(job["seconds"])
os.chdir(job["folder"])
os.environ.clear()
os.environ.update(job["environment"])
sys.stdin = open(os.devnull)
for handle, path in ((0, os.devnull), (1, job["output"]), (2, job["errors"])):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), handle)
sys.argv = job["words"]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
del line, pid, handle, path, job
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class WarmPython:
    """Runs scripts like `python SCRIPT ARGUMENTS`, each in a process of its own.

    `environment` is that of the template process too, for variables that Python reads when it starts.
    """

    def __init__(self, environment):
        self._environment = dict(environment)
        self._template = subprocess.Popen(
            [sys.executable, "-c", TEMPLATE],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words, folder, seconds=240, **environment):
        """Run a script to its end, and return its exit code and what it printed."""
        with tempfile.TemporaryDirectory() as outside:
            output, errors = Path(outside, "output"), Path(outside, "errors")
            job = {
                "words": [str(word) for word in words],
                "folder": str(folder),
                "seconds": seconds,
                "environment": self._environment | environment,
                "output": str(output),
                "errors": str(errors),
            }
            self._template.stdin.write(json.dumps(job) + "\n")
            self._template.stdin.flush()
            code = int(self._template.stdout.readline())
            printed = [path.read_text("utf-8") for path in (output, errors)]
            return subprocess.CompletedProcess(job["words"], code, *printed)

    def close(self):
        """End the template process, which has nothing to clean up."""
        self._template.kill()
        self._template.communicate()


def without_settings():
    """Return the environment of the tests without the settings of flodl, with one thread per process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FLODL_")}
    return environment | {"PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
