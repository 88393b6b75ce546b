"""An oracle in mpmath, with formulas of its own: quadrature of the density, at high precision."""

import mpmath as mp
import pytest
import torch

mp.mp.dps = 20


class Oracle:
    """Integrals against the density of GN_p(mu, sigma), written from the paper's Definition."""

    def __init__(self, mu, sigma, p):
        self.mu, self.sigma, self.p = mp.mpf(mu), mp.mpf(sigma), mp.mpf(p)

    def density(self, x):
        p, s = self.p, self.sigma
        return p ** (1 - 1 / p) / (2 * s * mp.gamma(1 / p)) * mp.exp(-(abs(x - self.mu) ** p) / (p * s**p))

    def integral(self, g, low=0, high=mp.inf):
        """∫ g(x) f(x) dx over (low, high), cut into pieces that grow away from where the mass sits."""
        low, high = mp.mpf(low), mp.mpf(high)
        centre = min(max(self.mu, low), high)
        t = abs(centre - self.mu) / self.sigma
        step = self.sigma * (t ** (1 - self.p) if t > 1 else 1) / 4
        far = self.sigma * (self.p * (t**self.p / self.p + 120 + 12 / self.p)) ** (1 / self.p)
        growth = 4 if self.p < 1 else 2
        edges = {low, high, centre, self.mu - far, self.mu + far}
        edges |= {centre + sign * step * growth**k for k in range(30) for sign in (-1, 1)}
        edges = sorted(e for e in edges if low <= e <= high and abs(e - self.mu) <= 1.01 * far)
        return mp.quad(lambda x: g(x) * self.density(x), edges, maxdegree=6)

    def active(self):
        """P(x > 0), from the incomplete gamma function at high precision."""
        with mp.workdps(60):
            u = self.mu / self.sigma
            z = abs(u) ** self.p / self.p
            tail = mp.gammainc(1 / self.p, z, regularized=True) / 2
            return tail if u < 0 else 1 - tail


@pytest.fixture(scope="session")
def oracle():
    return Oracle


@pytest.fixture
def float64():
    """Python numbers become float64 tensors inside the test."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
