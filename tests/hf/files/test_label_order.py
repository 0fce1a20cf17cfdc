"""The order of labels decides what a head predicts."""

import pytest
import torch

from flodl import Trainer, load_checkpoint, save_checkpoint
from flodl.checkpoint import FileWriter, checkpoint_labels, save_bundle
from flodl.core import CheckpointError, HFError, TrainError
from flodl.hf import AutoModelForSequenceClassification, compute_loss, create_tiny, label_names, outputs
from flodl.train import ClassAccuracy, ClassF1, ConfusionMatrix

TEXTS = ["a moving film", "a dull story"]


def test_labels_in_another_order_than_those_of_the_checkpoint_raise(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels=["negative", "positive"])
    load = AutoModelForSequenceClassification.from_pretrained
    with pytest.raises(HFError, match=r"the head of the checkpoint predicts \['negative', 'positive'\]"):
        load(tmp_path / "tiny", labels=["positive", "negative"])
    assert load(tmp_path / "tiny", labels=["negative", "positive"]).config.labels == ("negative", "positive")
    assert load(tmp_path / "tiny", labels=["bad", "good"]).config.labels == ("bad", "good")


def test_labels_in_another_order_and_another_case_raise(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels=["NEGATIVE", "POSITIVE"])
    load = AutoModelForSequenceClassification.from_pretrained
    with pytest.raises(HFError, match=r"the head of the checkpoint predicts \['NEGATIVE', 'POSITIVE'\]"):
        load(tmp_path / "tiny", labels=["positive", " negative"])
    model = load(tmp_path / "tiny", labels=["negative", "positive"])
    assert model.config.labels == ("negative", "positive")


def test_the_load_report_has_the_labels_that_were_renamed(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels=["NEGATIVE", "POSITIVE"])
    load = AutoModelForSequenceClassification.from_pretrained
    report = str(load(tmp_path / "tiny", labels=["bad", "good"]).load_report)
    assert "the labels of the head were renamed (NEGATIVE → bad, POSITIVE → good)" in report
    assert "renamed" not in str(load(tmp_path / "tiny", labels=["NEGATIVE", "POSITIVE"]).load_report)
    assert "renamed" not in str(load(tmp_path / "tiny", labels=["a", "b", "c"]).load_report)


def test_a_set_of_labels_raises_because_it_has_no_order(tmp_path):
    with pytest.raises(HFError, match=r"labels is a set, .* label_names"):
        create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels={"negative", "positive"})


def test_the_labels_of_a_dataset_raise_with_the_function_that_makes_names_of_them(tmp_path):
    expected = (
        r"labels has 5000 names, of which 2 are distinct: 'bad' occurs twice\. .*=label_names\(labels\)\."
    )
    with pytest.raises(HFError, match=expected) as caught:
        create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels=["good", *["bad"] * 4999])
    assert len(str(caught.value)) < 200


def test_labels_that_differ_only_in_spaces_raise():
    with pytest.raises(HFError, match="'good' and 'good ' differ only in spaces"):
        label_names(["good", "bad", "good "])


def test_a_run_resumed_with_labels_in_another_order_raises(tmp_path, capsys):
    create_tiny(tmp_path / "tiny", TEXTS)

    def train(labels, epochs):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tiny", labels=labels)
        trainer = Trainer(
            model,
            compute_loss,
            optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
            checkpoint_dir=tmp_path / "run",
            device="cpu",
        )
        trainer.fit(model.dataset(TEXTS * 4, [0, 1] * 4), epochs=epochs, batch_size=4)

    train(["bad", "good"], 1)
    with pytest.raises(TrainError, match=r"predicts \['bad', 'good'\].* another order, \['good', 'bad'\]"):
        train(["good", "bad"], 2)
    train(["bad", "good"], 2)
    capsys.readouterr()
    train(["negative", "positive"], 3)
    assert "the labels of the model are now ['negative', 'positive'], were" in "".join(capsys.readouterr())


def test_metrics_with_the_labels_of_the_model_in_another_order_raise(tmp_path):
    model = create_tiny(tmp_path / "tiny", TEXTS, head="seqcls", labels=["pos", "neg"])

    def make(metric):
        return Trainer(
            model,
            compute_loss,
            metrics={"by_class": metric},
            outputs=outputs,
            optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-3),
            device="cpu",
            monitor=False,
        )

    for kind in (ClassAccuracy, ClassF1, ConfusionMatrix):
        with pytest.raises(TrainError, match=r"another order, \['pos', 'neg'\].*\(model\.config\.labels\)"):
            make(kind(["neg", "pos"]))
        for fitting in (model.config.labels, 2, ["good", "bad"]):
            make(kind(fitting))


LOADS = {
    "the function": lambda path, model: load_checkpoint(path, model.state_dict()),
    "the function, for the graph": lambda path, model: load_checkpoint(
        path, model.graph.state_dict(), prefix="graph"
    ),
    "the graph": lambda path, model: model.graph.load_checkpoint(path, prefix="graph"),
    "load_state_dict": lambda path, model: model.load_state_dict(torch.load(path.with_suffix(".pt"))),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_weights_of_labels_in_another_order_are_not_loaded(tmp_path, load):
    create_tiny(tmp_path / "tiny", TEXTS)
    create = AutoModelForSequenceClassification.from_pretrained
    trained = create(tmp_path / "tiny", labels=["negative", "positive"])
    save_checkpoint(tmp_path / "model.fdl", trained.state_dict())
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    other = create(tmp_path / "tiny", labels=["positive", "negative"], seed=1)
    before = other.state_dict()["graph.classifier.weight"].clone()
    with pytest.raises(CheckpointError, match=r"predicts the labels \['negative', 'positive'\], and '.*clas"):
        load(tmp_path / "model.fdl", other)
    assert torch.equal(other.state_dict()["graph.classifier.weight"], before)
    for names in (["negative", "positive"], ["bad", "good"]):
        load(tmp_path / "model.fdl", create(tmp_path / "tiny", labels=names))


def test_weights_without_the_head_are_loaded_with_any_labels(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS)
    create = AutoModelForSequenceClassification.from_pretrained
    trained = create(tmp_path / "tiny", labels=["negative", "positive"])
    trained.graph.save_checkpoint(tmp_path / "model.fdl")
    other = create(tmp_path / "tiny", labels=["positive", "negative"])
    report = other.graph.subgraph("encoder").load_checkpoint(tmp_path / "model.fdl", prefix="encoder")
    assert report.loaded


@pytest.mark.parametrize("write", ["snapshot", "writer", "bundle"])
def test_every_way_to_save_keeps_the_names_of_labels(tmp_path, write):
    create_tiny(tmp_path / "tiny", TEXTS)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "tiny", labels=["b", "a"])
    path = tmp_path / "model.fdl"
    if write == "snapshot":
        model.graph.snapshot_cpu().save(path)
    elif write == "writer":
        with FileWriter() as writer:
            writer.save(path, model)
    else:
        path = save_bundle(tmp_path / "bundles", 1, {"model": model.state_dict()}) / "model.fdl"
    assert checkpoint_labels(path) == ["b", "a"]


def test_a_bundle_whose_weights_have_no_names_is_compared_with_its_record(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS)
    create = AutoModelForSequenceClassification.from_pretrained
    state = dict(create(tmp_path / "tiny", labels=["a", "b"]).state_dict())
    parts = {"model": state, "trainer": {"labels": ["a", "b"]}}
    path = save_bundle(tmp_path / "bundles", 1, parts) / "model.fdl"
    with pytest.raises(CheckpointError, match="the same labels in another order"):
        load_checkpoint(path, create(tmp_path / "tiny", labels=["b", "a"]).state_dict())
