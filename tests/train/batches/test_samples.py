"""The loader knows how many samples a batch has, whatever its tensors look like."""

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, default_collate

from flodl import Loader
from flodl.train.batches.samples import SampleCounts, with_num_samples

SEQUENCES = [torch.zeros(5, 2) for _ in range(10)]


def by_time(samples):
    return torch.stack(samples, 1)


def counts_of(batches):
    return [samples for _, samples in with_num_samples(batches)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(SEQUENCES)


def test_a_loader_counts_what_it_drew():
    assert counts_of(Loader(SEQUENCES, batch_size=4, collate=by_time)) == [4, 4, 2]
    assert counts_of(Loader(SEQUENCES, batch_size=4, collate=by_time, drop_last=True)) == [4, 4]
    assert counts_of(Loader(iter(SEQUENCES), batch_size=4, collate=by_time)) == [4, 4, 2]


def test_a_loader_in_the_middle_of_an_epoch_counts_from_there():
    loader = Loader(SEQUENCES, batch_size=4, collate=by_time)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert counts_of(loader) == [4, 2]
    assert counts_of(loader) == [4, 4, 2]


def test_a_torch_loader_is_counted_by_its_sampler():
    def samples(**settings):
        return counts_of(Loader(DataLoader(SEQUENCES, collate_fn=by_time, **settings), batch_size=None))

    assert samples(batch_size=4) == [4, 4, 2]
    assert samples(batch_size=4, drop_last=True) == [4, 4]
    assert samples(batch_size=4, sampler=[1, 2, 3, 4, 5]) == [4, 1]
    assert samples(batch_sampler=BatchSampler(SequentialSampler(SEQUENCES), 4, False)) == [None] * 3


def test_the_sample_count_of_ready_made_batches_is_unknown():
    assert counts_of(Loader(iter([torch.zeros(3), torch.zeros(2)]), batch_size=None)) == [None, None]
    assert counts_of(Loader(DataLoader(Stream(), batch_size=4), batch_size=None)) == [None] * 3
    assert counts_of([torch.zeros(3)]) == [None]


ROWS = [(torch.full((3,), float(i)), torch.tensor(i)) for i in range(10)]


def without_first(samples):
    """Drop the samples below 6."""
    return default_collate([sample for sample in samples if int(sample[1]) >= 6])


def test_samples_that_a_collate_function_drops_are_not_counted():
    loader = Loader(ROWS, batch_size=8, shuffle=False, collate=without_first)
    assert counts_of(loader) == [2, 2]
    as_dict = Loader(
        ROWS, batch_size=8, shuffle=False, collate=lambda s: dict(zip("xy", without_first(s)), name="a")
    )
    assert counts_of(as_dict) == [2, 2]
    of_torch = DataLoader(ROWS, batch_size=8, collate_fn=without_first)
    assert counts_of(Loader(of_torch, batch_size=None)) == [2, 2]


def test_samples_that_augment_drops_are_not_counted():
    x, y = torch.randn(8, 3), torch.randn(8)
    loader = Loader(
        (x, y), batch_size=4, shuffle=False, augment=lambda batch, chance: (batch[0][:3], batch[1][:3])
    )
    assert counts_of(loader) == [3, 3]


def test_the_cursor_still_counts_what_was_read():
    loader = Loader(ROWS, batch_size=8, shuffle=False, collate=without_first)
    next(iter(loader))
    assert loader.position == 8


def test_rows_that_are_not_samples_are_not_counted():
    def counts(collate):
        return counts_of(Loader(ROWS, batch_size=8, shuffle=False, collate=collate))

    sequences = [torch.zeros(5, 2) for _ in range(8)]
    by_time_only = lambda samples: (torch.stack(sequences[: len(samples)], 1),) * 2  # noqa: E731
    with_labels = lambda samples: (by_time(sequences[: len(samples)]), torch.zeros(len(samples)))  # noqa: E731
    packed = lambda samples: (torch.zeros(1, 300), torch.zeros(1, 300))  # noqa: E731
    with_bounds = lambda samples: (torch.zeros(1, 300), torch.zeros(len(samples) + 1))  # noqa: E731
    views = lambda samples: torch.zeros(2 * len(samples), 3)  # noqa: E731
    for collate in (by_time_only, with_labels, packed, with_bounds, views):
        assert counts(collate) == [8, 2]


def test_rows_that_disagree_with_what_was_read_are_reported_once(capsys):
    loader = Loader(ROWS, batch_size=8, collate=lambda samples: (torch.zeros(4, 3), torch.zeros(5)))
    assert counts_of(loader) == [8, 2]
    counts = SampleCounts()
    capsys.readouterr()
    assert counts.of((torch.zeros(4, 3), torch.zeros(5)), 8) == 8
    assert counts.of((torch.zeros(4, 3), torch.zeros(5)), 8) == 8
    assert capsys.readouterr().err.count("its tensors have 4 and 5 rows; it counts as 8 samples") == 1
