"""Every error class: its exact message has the value, the dotted path and what to do."""

import inspect
import io
from dataclasses import make_dataclass

import pytest
import torch
from torch import Tensor, nn

from flodl import FlowBuilder, ThresholdHalt, Trainer, TrainStep
from flodl.cli import Args, option
from flodl.cli.manifest.loader import load
from flodl.cli.program import program
from flodl.core import (
    ArgsError,
    BuildError,
    CheckpointError,
    CursorError,
    DamagedError,
    DataError,
    DataFileError,
    DistributedError,
    DownloadError,
    FlodlError,
    GraphError,
    HFError,
    InputError,
    LoopError,
    ManifestError,
    MetricError,
    MonitorError,
    NotFiniteError,
    PathError,
    PictureError,
    RefError,
    RouteError,
    ScheduleError,
    SetupError,
    ShapeError,
    StateError,
    StepError,
    TagError,
    TrainError,
    WriteError,
    errors,
)
from flodl.core.files import write_atomic
from flodl.data import Loader, read_idx
from flodl.data.datasets.download import download
from flodl.distributed.coverage import ChunkPool
from flodl.hf import AutoModel
from flodl.monitor.journal import journal_file
from flodl.optim import CosineScheduler

from ..nodes import Blend, Double, Remember, Triple

X = torch.ones(3, 2)


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"needs 4 features, got {x.shape[-1]}")


def inside(flow: FlowBuilder):
    """Nest a graph in another one, so that the error has a path."""
    return FlowBuilder(flow.label("encoder").build()).build


def build_error(_):
    FlowBuilder().split([Double(), Triple()]).through(Double())


def tag_error(_):
    FlowBuilder().tag("a.b")


def ref_error(_):
    FlowBuilder().tag("cx").through(Blend()).using("cx")


def shape_error(_):
    inside(FlowBuilder(Narrow()).tag("head"))(example=X)


def route_error(_):
    inside(FlowBuilder().gate(lambda x: torch.ones(3, 3), [Double(), Triple()]).tag("moe"))()(X)


def loop_error(_):
    halt = ThresholdHalt(10.0, per_sample=True)
    inside(FlowBuilder().loop_body(lambda x: torch.cat([x, x])).while_cond(halt, 2).tag("scan"))()(X)


def input_error(_):
    FlowBuilder().input("ctx").through(Blend()).using("ctx").build()(X)


def state_error(_):
    model = inside(FlowBuilder(Remember()).using("memory").tag("memory"))()
    model(X)
    model(X[:2])


def path_error(_):
    FlowBuilder(Double()).tag("hidden").build().tagged("hiden")


def metric_error(_):
    FlowBuilder(Double()).build().record("loss", X)


def schedule_error(_):
    CosineScheduler(0.1, 0.001, 0)


def step_error(_):
    model = nn.Linear(2, 2)
    TrainStep(model, torch.optim.SGD(model.parameters()), lambda model, x: model(x).sum(), accumulate=0)


def small_trainer(**settings):
    return Trainer(
        nn.Linear(2, 1),
        lambda model, x: model(x).mean() * float("nan"),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
        **settings,
    )


def train_error(tmp_path):
    small_trainer(save_every=0)


def not_finite_error(tmp_path):
    small_trainer().fit(torch.ones(2, 2), epochs=1, batch_size=2)


def checkpoint_error(_):
    stored = io.BytesIO()
    FlowBuilder(nn.Linear(2, 3)).tag("head").build().save_checkpoint(stored)
    stored.seek(0)
    FlowBuilder(nn.Linear(2, 2)).tag("head").build().load_checkpoint(stored)


def damaged_error(folder):
    (folder / "model.fdl").write_bytes(bytes(8))
    FlowBuilder(nn.Linear(2, 3)).build().load_checkpoint(folder / "model.fdl")


def write_error(folder):
    (folder / "file").touch()
    FlowBuilder(nn.Linear(2, 3)).build().save_checkpoint(folder / "file" / "model.fdl")


def monitor_error(folder):
    journal_file(folder)


def distributed_error(_):
    ChunkPool(3, batch_size=4, drop_last=True)


def hf_error(folder):
    AutoModel.from_pretrained(folder)


def picture_error(_):
    FlowBuilder(Double()).build().svg_with_profile()


def args_error(_):
    Args(make_dataclass("Job", [("env", str, option("x"))]))


def manifest_error(folder):
    (folder / "fdl.yml").write_text("a: 1\na: 2\n")
    load(folder / "fdl.yml")


def setup_error(folder):
    (folder / "file").touch()
    program.main(["quickstart", "--out", str(folder / "file" / "run")], standalone_mode=False)


def data_error(_):
    Loader((X, X[:2]), 4)


def cursor_error(_):
    Loader(X, 2, seed=1).load_state_dict(Loader(X, 2).state_dict())


def data_file_error(folder):
    read_idx(write_atomic(folder / "labels", b"<html>"))


def download_error(folder):
    download(["http://127.0.0.1:9/x.gz"], folder / "x.gz", num_bytes=1, md5="", attempts=1)


MESSAGES = {
    DataError: (
        data_error,
        "the columns have unequal lengths {'0': 3, '1': 2}. Each needs one row per sample.",
    ),
    CursorError: (
        cursor_error,
        "the cursor was saved with seed=0, but this loader has 1. Use the same seed, or omit "
        "seed= to continue with the saved one.",
    ),
    DataFileError: (
        data_file_error,
        "{}/labels is not an IDX file: it starts with 3c 68 74 6d, expected 00 00, "
        "a type code and the number of dimensions.",
    ),
    DownloadError: (
        download_error,
        "x.gz could not be downloaded after 1 attempts. The last error: http://127.0.0.1:9/x.gz: "
        "[Errno 111] Connection refused. Check the network, or put the file at {}/x.gz yourself.",
    ),
    BuildError: (build_error, "through needs one stream, but 2 are open. Call merge first."),
    TagError: (
        tag_error,
        "the tag 'a.b' has a dot, which separates the segments of a path. "
        "Use letters, digits, '_' and '-', for example 'a_b'.",
    ),
    RefError: (
        ref_error,
        "blend takes no reference 'cx': it takes 'ctx'. "
        "Add a keyword parameter 'cx' (or **refs) to its forward, or use another tag.",
    ),
    ShapeError: (
        shape_error,
        "at 'encoder.head': needs 4 features, got 2 (Narrow(), given (3, 2)). "
        "Change the node to accept this shape, or fix the node before it.",
    ),
    RouteError: (
        route_error,
        "at 'encoder.moe': the router gives 3 weights for 2 experts. "
        "Give the router 2 outputs or add an expert.",
    ),
    LoopError: (
        loop_error,
        "at 'encoder.scan.body': the body changes the state from shape (3, 2) to (6, 2). "
        "A loop that stops samples one by one needs a body that preserves the shape.",
    ),
    InputError: (
        input_error,
        "the graph takes 2 inputs, got 1 by position. Call it as model(x, ctx=…).",
    ),
    StateError: (
        state_error,
        "at 'encoder.state_memory': the carried value 'memory' comes from a batch of 3, this call has 2. "
        "Call reset_state() where a sequence ends, or keep the batch size.",
    ),
    PathError: (path_error, "'hiden' is neither a subgraph nor a tag. Did you mean 'hidden'?"),
    MetricError: (
        metric_error,
        "the metric 'loss' got a tensor of shape (3, 2). "
        "Reduce it to one number first, for example with .mean(), or record a 1-D tensor of values.",
    ),
    ScheduleError: (
        schedule_error,
        "CosineScheduler: total=0, expected an integer of at least 1. "
        "Pass the number of optimizer updates that the decay takes.",
    ),
    StepError: (step_error, "accumulate=0. Pass an integer of at least 1."),
    TrainError: (
        train_error,
        "save_every=0. Use an integer of at least 1, or None for never.",
    ),
    NotFiniteError: (
        not_finite_error,
        "the loss or the gradients were not finite in 1 of the updates up to 1. Those updates were skipped, "
        "so the weights are those of the last finite update. When the batch is run again, every module "
        "returned finite values, but the loss is not finite: look at what the step function computes. It is "
        "batch 1 of epoch 1, with the samples 0, 1. Lower the learning rate or clip the gradients. "
        "With nan='skip', training continues.",
    ),
    CheckpointError: (
        checkpoint_error,
        "at 'head.weight': the stream has shape (3, 2), the model (2, 2). 1 more name differs. "
        "Nothing was loaded. Build the model with the sizes it was saved with.",
    ),
    DamagedError: (
        damaged_error,
        "'{}/model.fdl' is not a complete checkpoint: Expecting value: line 1 column 1 (char 0). "
        "It was truncated or changed, or is a different kind of file. Use an earlier checkpoint.",
    ),
    WriteError: (
        write_error,
        "cannot write '{}/file/model.fdl': '{}/file' is a file, not a folder. An existing file is unchanged. "
        "Choose another path.",
    ),
    DistributedError: (
        distributed_error,
        "at 'num_samples': an epoch of 3 samples has no batch of 4. "
        "Use a smaller batch size or drop_last=False.",
    ),
    HFError: (
        hf_error,
        "{} has no config.json. Pass the folder that contains it and the weights.",
    ),
    MonitorError: (
        monitor_error,
        "'{}' has no journal. "
        "Pass the folder of a run, which contains a journal.jsonl: the checkpoint_dir of a Trainer, or the "
        "run_dir of a Monitor.",
    ),
    PictureError: (
        picture_error,
        "svg_with_profile has no times to show. Call model.profile(x) first, or pass an example: "
        "model.svg_with_profile(example=x).",
    ),
    ArgsError: (args_error, "at 'Job.env': --env is reserved for fdl. Choose another name."),
    ManifestError: (manifest_error, "{}/fdl.yml:2: the key 'a' appears twice in one map. Keep one of them."),
    SetupError: (setup_error, "--out {}/file/run: Not a directory. Choose a folder that can be created."),
}


@pytest.mark.parametrize("error", MESSAGES, ids=lambda error: error.__name__)
def test_an_error_says_what_happened_where_and_what_to_do(error, tmp_path):
    cause, message = MESSAGES[error]
    with pytest.raises(FlodlError) as caught:
        cause(tmp_path)
    assert type(caught.value) is error
    assert str(caught.value) == message.replace("{}", str(tmp_path))


def test_every_error_class_has_an_example():
    made_here = inspect.getmembers(errors, lambda value: getattr(value, "__module__", "") == errors.__name__)
    classes = {value for _, value in made_here if inspect.isclass(value)}
    assert classes == {FlodlError, GraphError, *MESSAGES}


@pytest.mark.parametrize("root", [FlodlError, GraphError])
def test_enclosing_names_are_prepended_to_the_path(root):
    error = root("the value is 3. Give 2.", path="scan")
    assert str(error.under("encoder").under("model")) == "at 'model.encoder.scan': the value is 3. Give 2."
    assert (error.message, error.path) == ("the value is 3. Give 2.", "model.encoder.scan")
    assert str(root("the value is 3.")) == "the value is 3."


def test_errors_can_be_caught_by_their_base_classes():
    with pytest.raises(GraphError):
        build_error(None)
    with pytest.raises(FlodlError):
        metric_error(None)
    assert not issubclass(MetricError, GraphError)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda model: model(X, X, X), "got 3 by position"),
        (lambda model: model(X, other=X), "got 1 by position and other by name"),
        (lambda model: model(X, X, ctx=X), "got 2 by position and ctx by name"),
    ],
)
def test_wrong_inputs_raise_with_the_right_call(call, got):
    model = FlowBuilder().input("ctx").through(Blend()).using("ctx").build()
    with pytest.raises(InputError) as caught:
        call(model)
    assert str(caught.value) == f"the graph takes 2 inputs, {got}. Call it as model(x, ctx=…)."


def test_an_input_cannot_be_passed_both_by_position_and_by_name():
    model = FlowBuilder().input("a", "b").through(lambda x, a, b: x).using("a", "b").build()
    with pytest.raises(InputError, match="got 2 by position and a by name"):
        model(X, X, a=X)
