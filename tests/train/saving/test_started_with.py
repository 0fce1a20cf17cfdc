"""A finished run in a folder whose program is started with other arguments, or with other weights."""

import sys
import types

import pytest
import torch

from ..conftest import small_model


@pytest.fixture
def started(make, data, tmp_path, monkeypatch, capsys):
    """Return what a start of the same script prints, with arguments and a factor for its first weights."""
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__file__=str(script)))

    def start(*arguments, factor=1.0, epochs=2, **settings):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        model = small_model()
        with torch.no_grad():
            model[0].weight.mul_(factor)
        trainer = make(model, checkpoint_dir=tmp_path / "run", **settings)
        trainer.fit(data, epochs=epochs, batch_size=8)
        return "".join(capsys.readouterr())

    return start


def test_changed_arguments_of_the_program_are_reported(started):
    assert "code.arguments" not in started("a.pt")
    assert "code.arguments" not in started("a.pt")
    assert "code.arguments" not in started("a.pt", "--resume")
    told = started("b.pt")
    assert "nothing is left to train" in told
    assert "code.arguments is now ['b.pt'], was ['a.pt']" in told


def test_arguments_that_settings_were_parsed_from_are_compared_by_name(started):
    started("--width", "8", config={"width": 8})
    told = started("--width", "9", config={"width": 9})
    assert "config.width is now 9, was 8" in told
    assert "code.arguments" not in told


def test_other_weights_at_the_start_are_named_if_the_seed_is_the_same(started, make, data, tmp_path, capsys):
    text = "the initial weights differ from those that the run started with"
    assert text not in started()
    assert text not in started(epochs=3)
    assert started(factor=2.0, epochs=4).count(text) == 1
    other = make(small_model(seed=1), checkpoint_dir=tmp_path / "run")
    other.fit(data, epochs=5, batch_size=8)
    assert text not in "".join(capsys.readouterr())


def test_a_model_that_was_trained_or_restored_is_not_taken_for_one_at_its_start(make, data, tmp_path, capsys):
    model = small_model()
    for epochs in (1, 2):
        make(model, checkpoint_dir=tmp_path).fit(data, epochs=epochs, batch_size=8, eval_data=data)
    restored = make(checkpoint_dir=tmp_path)
    restored.restore_best()
    restored.fit(data, epochs=3, batch_size=8, eval_data=data)
    assert "initial weights differ" not in "".join(capsys.readouterr())
