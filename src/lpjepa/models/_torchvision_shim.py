"""The name by which the models know `lpjepa._torchvision_shim`."""

from lpjepa._torchvision_shim import declare_missing_ops as declare_missing_ops
