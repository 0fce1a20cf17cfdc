"""Standard streams that are closed before fdl starts."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", ["--version", "version", "--help"])
def test_a_closed_stream_causes_no_traceback(tmp_path, closed, words):
    line = f"{sys.executable} -c 'import sys; from flodl.cli import main; sys.exit(main())' {words} {closed}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
