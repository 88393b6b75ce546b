"""LeJEPA (Balestriero and LeCun, 2025): SIGReg and invariance, one weight between them."""

from torch import Tensor

from lpjepa.losses._joint_embedding import JointEmbedding
from lpjepa.losses._objective import upcast
from lpjepa.losses.sigreg import SIGReg


class LeJEPA(JointEmbedding):
    """`(1 − λ) · invariance + λ · SIGReg` with LeJEPA's own invariance,

        mean over views v, N and D of (z_v − mean over global views g of z_g)²,

    a quarter of the squared difference for two views. `matching_weight` is λ, by default 0.05 as its paper
    recommends. With crops of several sizes, the first `global_views` views are those that show most of the
    image and whose mean all views predict; by default all are. The paper's "LeJEPA" rows; features are plain.

    Views: (N, D) each, or (V, N, D). `components`: loss, invariance, matching (SIGReg).
    """

    def __init__(
        self,
        num_slices: int = 1024,
        matching_weight: float = 0.05,
        global_views: int | None = None,
        t_max: float = 3.0,
        num_points: int = 17,
        seed: int = 0,
    ) -> None:
        if not 0 <= matching_weight <= 1:
            raise ValueError(f"matching_weight is LeJEPA's λ and lies in [0, 1], got {matching_weight}.")
        if global_views is not None and global_views < 1:
            raise ValueError(f"global_views must be at least 1, got {global_views}.")
        super().__init__(SIGReg(num_slices, t_max, num_points, seed), 1 - matching_weight, matching_weight)
        self.global_views = global_views

    def _invariance(self, z_VND: Tensor, count: int) -> Tensor:
        V, _, D = z_VND.shape
        if self.global_views is not None and self.global_views > V:
            raise ValueError(f"features have {V} views, fewer than global_views={self.global_views}.")
        z_VND = upcast(z_VND)
        return (z_VND - z_VND[: self.global_views].mean(0)).square().sum() / (V * count * D)
