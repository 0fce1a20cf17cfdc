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
import json, os, runpy, signal, sys, types
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
del line, pid, handle, path, job
if sys.argv[0] == "-m":
    del sys.argv[0]
    sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
elif sys.argv[0] == "-c":
    template, program = sys.modules["__main__"], sys.argv.pop(1)
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(program, vars(main))
else:
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


# The first is what torch says on ARM processors without bfloat16.
ENVIRONMENT = {
    "PYTHONWARNINGS": "ignore:mkldnn_matmul failed:UserWarning",
    "PYTHONIOENCODING": "utf-8",
    "OMP_NUM_THREADS": "1",
}


class WarmPython:
    """Runs programs like `python WORDS`, each in a process of its own, in the environment of the test.

    `environment` is for variables that Python reads when it starts, such as PYTHONHASHSEED.
    """

    def __init__(self, **environment):
        self._environment = ENVIRONMENT | environment
        self._template = subprocess.Popen(
            [sys.executable, "-c", TEMPLATE],
            env=os.environ | self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words, cwd, seconds=240, **environment):
        """Run a script, `-m MODULE` or `-c CODE` to its end; return its exit code and what it printed."""
        with tempfile.TemporaryDirectory() as outside:
            output, errors = Path(outside, "output"), Path(outside, "errors")
            job = {
                "words": [str(word) for word in words],
                "folder": str(cwd),
                "seconds": seconds,
                "environment": os.environ | self._environment | environment,
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
