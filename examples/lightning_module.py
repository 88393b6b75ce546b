"""Rectified LpJEPA in a LightningModule: the training of drop_in.py with Lightning's Trainer.

    python examples/lightning_module.py [STEPS]

Needs torch, lpjepa, lightning and scikit-learn (for the digits). With several devices the loss is that of the
global batch: it gathers the features by itself, so leave Trainer's own gathering alone.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RectifiedLpJEPA

# Lightning imports torchvision, which fails where it was built for another torch, as the plain wheel is
# beside a CPU build of torch. This line mends that, and does nothing where the import works.
declare_missing_ops()

try:
    import lightning
except ImportError:
    sys.exit("This example needs Lightning: pip install lightning")


class SparseDigits(lightning.LightningModule):
    def __init__(self, active: float = 0.2, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256))
        self.projector = nn.Sequential(nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        self.target = RectifiedGeneralizedGaussian.from_active_fraction(active, p=1.0)
        # A module: the state of its random directions is saved in Lightning's checkpoints.
        self.criterion = RectifiedLpJEPA(self.target, num_slices=512, axes_weight=1.0)

    def forward(self, images):
        return self.projector(self.encoder(images))

    def training_step(self, batch, index):
        (images,) = batch
        views = [self(images + 0.3 * torch.randn_like(images)) for _ in range(2)]
        parts = self.criterion.components(*views)
        self.log_dict(parts._asdict())
        return parts.loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main(steps: int) -> None:
    lightning.seed_everything(0, verbose=False)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    dataset = TensorDataset(images)
    loader = DataLoader(dataset, batch_size=256, sampler=RandomSampler(dataset, num_samples=256 * steps))
    module = SparseDigits()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    module.eval()
    with torch.no_grad():
        active = (module(images) > 0).float().mean()
    print(f"loss {trainer.callback_metrics['loss']:.3f}")
    print(f"active fraction {active:.3f}, the target predicts {module.target.active_probability:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
