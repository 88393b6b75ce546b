"""The explorer's own mathematics against `lpjepa.distributions` and mpmath, run in node or the browser."""

import json
import shutil
import subprocess
from itertools import product

import mpmath
import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian, sigma_gn, sigma_rgn
from lpjepa.report.markup import template

EXPONENTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
SCALES = ("gn", "rgn", 0.7, 2.0)
ACTIVE = (0.001, 0.01, 0.05, 0.2, 0.5, 0.6, 0.9, 0.995)


def evaluate(expression, request):
    """The value of a JavaScript expression beside the explorer's mathematics."""
    source = f"{template('rgg.js')}\nJSON.stringify({expression})"
    if node := shutil.which("node"):
        done = subprocess.run([node, "-p", source], capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)
    page = f"<body><pre id=out></pre><script>out.textContent = eval({json.dumps(source)})</script>"
    return json.loads(request.getfixturevalue("open_page")(page, "out"))


@pytest.mark.parametrize("scale", SCALES)
def test_targets_agree_with_python_to_1e_10(scale, request):
    grid = list(product(EXPONENTS, ACTIVE))
    rows = evaluate(
        f"""{json.dumps(grid)}.map(([p, active]) => {{
            const scale = {json.dumps(scale)};
            const t = RGG.fromActive(active, p, scale), d = RGG.describe(t.mu, t.sigma, p);
            return [t.mu, t.sigma, RGG.scaleFor(t.mu, p, scale), d.active, d.atom, d.mean, d.variance, d.l1,
                    d.entropy, RGG.density(0.7, t.mu, t.sigma, p), RGG.density(3, t.mu, t.sigma, p)];
        }})""",
        request,
    )
    p, active = torch.tensor(grid, dtype=torch.float64).T
    target = RectifiedGeneralizedGaussian.from_active_fraction(active, p, scale, torch.float64)
    sigma = sigma_gn(p) if scale == "gn" else sigma_rgn(p, target.loc) if scale == "rgn" else target.scale
    at = lambda x: target.log_prob(torch.full_like(p, x)).exp()
    expected = torch.stack(
        [
            target.loc, target.scale, sigma, active, at(0.0), target.mean, target.variance,
            target.expected_l1_metric, target.entropy(), at(0.7), at(3.0),
        ],
        dim=1,
    )  # fmt: skip
    torch.testing.assert_close(torch.tensor(rows, dtype=torch.float64), expected, rtol=1e-10, atol=1e-14)


def test_incomplete_gamma_agrees_with_mpmath(request):
    grid = list(product((0.25, 0.5, 1.0, 2.0, 4.0, 12.0), (1e-8, 1e-3, 0.3, 1.0, 4.0, 12.9, 40.0, 200.0)))
    rows = evaluate(f"{json.dumps(grid)}.map(([a, x]) => [...RGG.gammaPQ(a, x), RGG.logGamma(a)])", request)
    for (a, x), row in zip(grid, rows, strict=True):
        lower = mpmath.gammainc(a, 0, x, regularized=True)
        upper = mpmath.gammainc(a, x, regularized=True)
        assert row == pytest.approx(
            [float(lower), float(upper), float(mpmath.loggamma(a))], rel=1e-12, abs=1e-14
        )
