"""The loader knows how many samples a batch has, whatever its tensors look like."""

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from flodl import Loader
from flodl.train.batches.samples import with_num_samples

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
