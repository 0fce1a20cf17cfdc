"""Data that changes between two calls, lists of batches, and loaders that are only borrowed."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flodl import Loader, Trainer
from flodl.core import DataError, StepError, TrainError
from flodl.train import EarlyStopping

X = torch.arange(20.0).view(20, 1)


def trainer(step_fn, **settings):
    return Trainer(
        nn.Linear(1, 1),
        step_fn,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0),
        device="cpu",
        monitor=False,
        tier="eager",
        **settings,
    )


def mean_of(model, x):
    return model(x).sum() * 0 + x.mean()


def test_changed_data_is_read_with_its_current_values():
    table = {"x": torch.zeros(8, 1)}
    one = trainer(lambda model, batch: mean_of(model, batch["x"]))
    assert one.evaluate(table)["loss"] == 0.0
    table["x"] = torch.ones(8, 1)
    assert one.evaluate(table)["loss"] == 1.0
    assert one.fit(table, epochs=1, batch_size=4).metrics["loss"] == 1.0
    table["x"] = torch.full((8, 1), 2.0)
    assert one.fit(table, epochs=2, batch_size=4).metrics["loss"] == 2.0
    rows = [(torch.zeros(1),)] * 4
    other = trainer(mean_of)
    assert other.evaluate(rows)["loss"] == 0.0
    rows += [(torch.ones(1),)] * 4
    assert other.evaluate(rows)["loss"] == 0.5


def test_a_list_of_batches_is_evaluated_batch_by_batch():
    batches, shapes = [(X[at : at + 4],) for at in range(0, 20, 4)], set()

    def spread(model, x):
        shapes.add(tuple(x.shape))
        return model(x).sum() * 0 + (x - x.mean(0)).square().mean()

    found = trainer(spread).fit(batches, epochs=1, eval_data=batches).metrics
    assert found["eval_loss"] == found["loss"]
    assert shapes == {(4, 1)}


def test_an_evaluation_does_not_move_a_loader():
    given, alone = Loader(X, 5, seed=1), Loader(X, 5, seed=1)
    one = trainer(mean_of)
    for _ in range(3):
        assert [b.tolist() for b in given] == [b.tolist() for b in alone]
        one.evaluate(given)
    next(iter(given))
    one.evaluate(given)
    assert (given.epoch, given.position) == (3, 5)


def test_data_that_was_modified_after_it_was_copied_is_copied_again(monkeypatch):
    # On the meta device, data is copied only on request.
    one = Trainer(
        nn.Linear(1, 1), mean_of, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0), device="meta"
    )
    data, loaders, cursor = X.clone(), one._run.loaders, one._run.cursor
    monkeypatch.setattr(
        loaders, "_build", lambda *given, **order: Loader(*given, device="meta", mode="resident", **order)
    )
    first = one.loader(data, 5)
    evaluated = loaders.for_evaluation(data, 5)
    assert one.loader(data, 5) is first
    given = cursor.batches(first)
    for _ in range(2):
        next(given)
        one._run.session.position.epoch_step += 1
    next(given)
    data.add_(1.0)
    # The loader is not replaced while a loop reads from it.
    assert one.loader(data, 5) is first
    given.close()
    again = one.loader(data, 5)
    assert again is not first
    # The third batch was returned, but never trained on.
    assert (again.epoch, again.position) == (0, 10)
    assert one.loader(data, 5) is again
    assert loaders.for_evaluation(data, 5) is not evaluated
    assert loaders.for_evaluation(data, 5) is loaders.for_evaluation(data, 5)


def rows_trained(**settings):
    seen = []

    def noting(model, x):
        seen.extend(x.flatten().tolist())
        return mean_of(model, x)

    trainer(noting, **settings).fit(X, epochs=1, batch_size=4)
    return seen


def test_each_seed_of_manual_seed_gives_another_order():
    orders = []
    for seed in range(5):
        torch.manual_seed(seed)
        orders.append(rows_trained())
        assert orders[-1] == rows_trained(seed=seed)
    assert len({tuple(order) for order in orders}) == 5


def test_a_seed_of_the_trainer_that_the_loader_does_not_have_is_rejected():
    with pytest.raises(TrainError, match=r"Trainer\(seed=5\) with a Loader whose seed is 0\. .*seed=5\)"):
        trainer(mean_of, seed=5).fit(Loader(X, 4), epochs=1)
    trainer(mean_of, seed=5).fit(Loader(X, 4, seed=5), epochs=1)


def test_a_shuffled_dataloader_can_be_evaluated():
    rows = DataLoader(TensorDataset(X), batch_size=5, shuffle=True)
    assert trainer(lambda model, x: mean_of(model, x)).evaluate(rows)["loss"] == X.mean()


@pytest.fixture
def batches(data):
    x, y = data
    return [(x[:8], y[:8]), (x[8:], y[8:])]


def test_a_list_of_batches_is_evaluated_with_batch_size_none(make, data, batches):
    trainer = make()
    expected = pytest.approx(trainer.evaluate(data), rel=1e-6)
    assert trainer.evaluate(batches, batch_size=None) == expected
    assert trainer.evaluate(batches, None) == expected


def test_a_list_of_batches_that_is_read_as_samples_is_explained(make, data, batches):
    x, y = data
    for wrong in (batches, [(x[:8, :2], y[:8]), (x[8:16, :2], y[8:16])]):
        with pytest.raises(Exception) as caught:
            make().evaluate(wrong)
        assert "look like batches" in "".join(caught.value.__notes__)
    with pytest.raises(Exception) as caught:
        make().fit(data, epochs=1, batch_size=4, eval_data=batches)
    assert "look like batches" in "".join(caught.value.__notes__)


def test_a_list_of_samples_is_evaluated_by_default(make, data):
    x, y = data
    trainer = make()
    expected = pytest.approx(trainer.evaluate(data), rel=1e-6)
    assert trainer.evaluate([*zip(x, y)]) == expected
    assert trainer.evaluate(data, batch_size=None) == expected


@pytest.mark.parametrize(
    ("eval_data", "message"),
    [
        ((torch.zeros(0, 3), torch.zeros(0, 1)), "the source has no samples"),
        (3, "the source is an int, which a loader cannot read"),
        ((torch.zeros(4, 3), torch.zeros(3, 1)), "the columns have unequal lengths"),
    ],
)
def test_wrong_evaluation_data_is_named_as_such(make, data, eval_data, message):
    with pytest.raises(DataError, match=f"the evaluation data cannot be used: {message}"):
        make().fit(data, epochs=1, batch_size=5, eval_data=eval_data)


@pytest.mark.parametrize("eval_data", [(torch.zeros(8, 2), torch.zeros(8, 1)), (torch.zeros(8, 3),)])
def test_a_batch_of_the_evaluation_data_is_named_as_such(make, data, eval_data):
    with pytest.raises(StepError, match=r"batch of the evaluation data"):
        make().fit(data, epochs=1, batch_size=5, eval_data=eval_data)


def test_batches_that_fit_reads_as_samples_are_mentioned_in_the_error(make, data):
    def strict(model, x, y):
        assert x.dim() == 2
        return (model(x) - y).square().mean()

    batches = [tuple(part[i : i + 4] for part in data) for i in range(0, 8, 4)]
    with pytest.raises(AssertionError) as caught:
        make(step_fn=strict).fit(batches, epochs=1, batch_size=2)
    assert "look like batches" in "".join(caught.value.__notes__)
    with pytest.raises(AssertionError) as caught:
        make(step_fn=strict).fit(Loader(batches, 2), epochs=1)
    assert "look like batches" in "".join(caught.value.__notes__)
    make(step_fn=strict).fit(batches, epochs=1)
    make(step_fn=strict).fit(Loader(batches, None), epochs=1)


def test_batches_that_fit_would_stack_silently_are_reported_once(make, data, capsys):
    batches = [tuple(part[i : i + 5] for part in data) for i in range(0, 10, 5)]
    make().fit(batches, epochs=2, batch_size=5)
    assert capsys.readouterr().err.count("For a list of batches, pass batch_size=None") == 1
    make().fit(batches, epochs=2)
    make().fit([*zip(*data)], epochs=1, batch_size=5)
    assert capsys.readouterr().err == ""


def orders_of(run, num_epochs, new_loader, *, at_most=None):
    """Train with a new loader for each epoch, and return the samples of each epoch in order."""
    orders = []
    while run.epochs < num_epochs:
        order = []
        for batch in run.epoch(new_loader()):
            run.step(batch)
            order += batch.flatten().tolist()
            if at_most is not None and run.updates == at_most:
                return [*orders, order]
        orders.append(order)
    return orders


def test_a_new_loader_for_each_epoch_has_the_orders_of_a_single_one():
    single = Loader(X, 8, seed=1)
    expected = orders_of(trainer(mean_of), 3, lambda: single)
    assert orders_of(trainer(mean_of), 3, lambda: Loader(X, 8, seed=1)) == expected
    assert expected[0] != expected[1]
    one = trainer(mean_of)
    one.fit(Loader(X, 8, seed=1), epochs=2)
    assert orders_of(one, 3, lambda: Loader(X, 8, seed=1)) == expected[2:]


@pytest.mark.parametrize("at_most", [3, 4])
def test_a_resumed_loop_with_a_new_loader_for_each_epoch_equals_one_that_never_stopped(tmp_path, at_most):
    def new_loader():
        return Loader(X, 8, seed=1)

    def make():
        return trainer(mean_of, checkpoint_dir=tmp_path, save_every_steps=1)

    def go(run, **limit):
        with run.running(3):
            run.resume(new_loader())
            return orders_of(run, 3, new_loader, **limit)

    expected = orders_of(trainer(mean_of), 3, new_loader)
    parts = go(make(), at_most=at_most) + go(make())
    assert [*chain(*parts)] == [*chain(*expected)]


def test_a_loop_that_was_left_early_continues_in_a_new_loader_over_the_same_data():
    one = trainer(mean_of)
    first = orders_of(one, 1, lambda: Loader(X, 8, seed=1), at_most=1)
    rest = orders_of(one, 1, lambda: Loader(X, 8, seed=1))
    assert len(first[0]) == 8
    assert sorted(first[0] + rest[0]) == X.flatten().tolist()


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_samples_that_an_evaluation_leaves_out_are_reported_once(kind, capsys):
    one = trainer(mean_of)
    one.evaluate(kind(X, 5, drop_last=True))
    assert capsys.readouterr().err == ""
    for _ in range(2):
        one.evaluate(kind(X, 3, drop_last=True))
    left = len(X) % 3
    warning = f"drop_last=True, so {left} of {len(X)} samples are left out of its metrics"
    assert capsys.readouterr().err.count(warning) == 1


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("wrap", [iter, lambda batches: Loader(iter(batches), None)])
def test_an_iterator_for_several_epochs_is_rejected_before_anything_is_trained(wrap, limit):
    made = trainer(lambda model, x: model(x).square().mean())
    with pytest.raises(TrainError, match="the training data is an iterator, such as a generator or zip"):
        made.fit(wrap([X[:10], X[10:]]), epochs=2, limit=limit)
    assert made.updates == 0


@pytest.mark.parametrize("limit", [None, 1])
def test_an_iterator_can_be_trained_on_for_one_epoch(limit):
    made = trainer(lambda model, x: model(x).square().mean())
    assert made.fit(iter([X[:10], X[10:]]), epochs=1, limit=limit).steps == (limit or 2)


def test_samples_with_sequences_of_their_own_lengths_are_not_called_batches(make):
    sequences = [(torch.ones(n, 3), torch.ones(n, 1)) for n in (7, 5, 6, 4)]

    def collate(items):
        return tuple(nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*items))

    trainer = make(hooks=[EarlyStopping("eval_los")])
    train, evaluation = (Loader(sequences, 2, collate=collate) for _ in range(2))
    with pytest.raises(TrainError) as caught:
        trainer.fit(train, epochs=1, eval_data=evaluation)
    assert "look like batches" not in "".join(getattr(caught.value, "__notes__", []))
