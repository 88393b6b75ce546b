"""BatchNorm over two processes against torch's own on the whole batch: values, gradients, statistics."""

import os

import torch
import torch.multiprocessing as mp
from torch import nn

from lpjepa.models import GlobalBatchNorm, build_encoder, synchronise_batch_norm


def _worker(rank, world, folder):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(os.path.join(folder, "store"), world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    for shape in ((6, 5), (6, 5, 3, 3)):
        x = (torch.randn(shape, dtype=torch.float64) * 3 + 100).requires_grad_()
        weight = torch.randn(shape, dtype=torch.float64)
        plain = (nn.BatchNorm1d(5) if len(shape) == 2 else nn.BatchNorm2d(5)).double()
        nn.init.normal_(plain.weight)
        ours = synchronise_batch_norm(nn.Sequential(plain), "cpu")[0]
        assert isinstance(ours, GlobalBatchNorm)
        part = slice(2) if rank == 0 else slice(2, 6)  # unequal shares
        mine = x.detach()[part].clone().requires_grad_()
        expected = plain(x)
        (expected * weight).sum().backward()
        found = ours(mine)
        (found * weight[part]).sum().backward()
        torch.testing.assert_close(found, expected[part])
        torch.testing.assert_close(mine.grad, x.grad[part])
        for gradient, whole in ((ours.weight.grad, plain.weight.grad), (ours.bias.grad, plain.bias.grad)):
            torch.distributed.all_reduce(gradient)
            torch.testing.assert_close(gradient, whole)
        torch.testing.assert_close(ours.running_mean, plain.running_mean)
        torch.testing.assert_close(ours.running_var, plain.running_var)
        torch.testing.assert_close(ours.eval()(mine), plain.eval()(x)[part])
    _running_statistics(rank)
    torch.distributed.destroy_process_group()


def _running_statistics(rank):
    """Of three batches, under a momentum and as their mean, which is what BatchNorm's `None` stands for."""
    for momentum in (0.3, None):
        plain = nn.BatchNorm2d(5, momentum=momentum).double()
        ours = synchronise_batch_norm(nn.Sequential(plain), "cpu")[0]
        for batch in range(1, 4):
            x = batch * torch.randn(6, 5, 3, 3, dtype=torch.float64) + batch
            plain(x)
            ours(x[:2] if rank == 0 else x[2:])
            for name, expected in plain.named_buffers():
                torch.testing.assert_close(ours.get_buffer(name), expected)


def test_two_processes_make_the_statistics_of_one(tmp_path):
    mp.spawn(_worker, (2, str(tmp_path)), nprocs=2)


def test_conversion_keeps_state_and_names():
    encoder = build_encoder("narrow", 8)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    synchronised = synchronise_batch_norm(encoder, "cpu")
    assert synchronised.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in synchronised.state_dict().items())
    assert not any(type(m) is nn.BatchNorm2d for m in synchronised.modules())
    assert any(
        isinstance(m, nn.SyncBatchNorm)
        for m in synchronise_batch_norm(build_encoder("narrow", 8), "cuda").modules()
    )
