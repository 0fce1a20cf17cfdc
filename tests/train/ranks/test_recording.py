"""What a step function records in a graph stays in its rank."""

import torch

from flodl import FlowBuilder


def test_a_step_function_that_records_in_the_graph_is_reported_at_the_start(make, data, capsys):
    def loss_of(model, x, y):
        loss = (model(x) - y).square().mean()
        model.record("mine", loss.detach(), weight=len(x))
        return loss

    def graph():
        return FlowBuilder(torch.nn.Linear(4, 1)).build()

    make(graph(), loss_of).fit(data, epochs=1, batch_size=24)
    told = capsys.readouterr().err
    assert told.count("the step function records 'mine' in the graph") == 1
    assert "`return loss, {'mine': value}`" in told
    make(graph(), loss_of, device="cpu").fit(data, epochs=1, batch_size=24)
    make(graph(), hooks=[Recording()]).fit(data, epochs=1, batch_size=24)
    assert "the step function records" not in capsys.readouterr().err


class Recording:
    """Records in the process of the program."""

    def on_epoch_end(self, trainer):
        trainer.model.record("mine", 1.0)
