"""Rectified LpJEPA in a plain PyTorch loop: sparse features of handwritten digits, in a few seconds on a CPU.

    python examples/drop_in.py [STEPS]

Needs torch, lpjepa and scikit-learn (for the digits).
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RectifiedLpJEPA

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
torch.manual_seed(0)
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16  # (1797, 64)

encoder = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256))
projector = nn.Sequential(nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())  # ends with a ReLU
model = nn.Sequential(encoder, projector)

target = RectifiedGeneralizedGaussian.from_active_fraction(0.2, p=1.0)  # one unit in five is on
criterion = RectifiedLpJEPA(target, num_slices=512, axes_weight=1.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for step in range(steps):
    batch = images[torch.randint(len(images), (256,))]
    z1, z2 = (model(batch + 0.3 * torch.randn_like(batch)) for _ in range(2))  # two noisy views
    parts = criterion.components(z1, z2)
    optimizer.zero_grad()
    parts.loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == steps - 1:
        print(f"step {step:4d}  " + "  ".join(f"{name} {x:.4f}" for name, x in parts._asdict().items()))

model.eval()
with torch.no_grad():
    active = (model(images) > 0).float().mean()
print(f"active fraction {active:.3f}, the target predicts {target.active_probability:.3f}")
