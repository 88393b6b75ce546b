// Rectified Generalized Gaussian RGN_p(mu, sigma) in closed form, with its own incomplete gamma functions.
// With t = mu / sigma and T = |t|^p / p, every moment is a tail integral that P(a, T) and Q(a, T) give.
const RGG = (() => {
  "use strict";
  const LANCZOS = [
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
  ];

  function logGamma(x) {
    if (x < 0.5) return Math.log(Math.PI / Math.sin(Math.PI * x)) - logGamma(1 - x);
    let sum = LANCZOS[0];
    for (let i = 1; i < LANCZOS.length; i++) sum += LANCZOS[i] / (x - 1 + i);
    const base = x + 6.5;
    return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(base) - base + Math.log(sum);
  }

  // Regularised incomplete gamma functions [P(a, x), Q(a, x)]: the power series below a + 1, Lentz's continued
  // fraction above, so that whichever of the two is small is computed directly and keeps its relative accuracy.
  function gammaPQ(a, x) {
    if (!(x > 0)) return [0, 1];
    if (x === Infinity) return [1, 0];
    const front = Math.exp(a * Math.log(x) - x - logGamma(a));
    if (x < a + 1) {
      let term = 1 / a, sum = term;
      for (let n = 1; n < 5000 && term > sum * 1e-17; n++) { term *= x / (a + n); sum += term; }
      const p = front * sum;
      return [p, 1 - p];
    }
    const tiny = 1e-300;
    let b = x + 1 - a, c = 1 / tiny, d = 1 / b, fraction = d;
    for (let n = 1; n < 5000; n++) {
      const an = -n * (n - a);
      b += 2;
      d = an * d + b; if (Math.abs(d) < tiny) d = tiny;
      c = b + an / c; if (Math.abs(c) < tiny) c = tiny;
      d = 1 / d;
      const step = d * c;
      fraction *= step;
      if (Math.abs(step - 1) < 1e-16) break;
    }
    const q = front * fraction;
    return [1 - q, q];
  }

  // (1 + sgn(t) P(a, T)) / 2 without cancellation for negative t.
  function upper(a, t, T) {
    const [p, q] = gammaPQ(a, T);
    return t < 0 ? q / 2 : (1 + p) / 2;
  }

  // Moments for sigma = 1, as functions of t = mu / sigma.
  function unit(t, p) {
    const T = Math.pow(Math.abs(t), p) / p;
    const active = upper(1 / p, t, T);
    const lg1 = logGamma(1 / p);
    const first = 0.5 * Math.pow(p, 1 / p) * Math.exp(logGamma(2 / p) - lg1) * gammaPQ(2 / p, T)[1];
    const second = Math.pow(p, 2 / p) * Math.exp(logGamma(3 / p) - lg1) * upper(3 / p, t, T);
    const mean = t * active + first;
    const square = t * t * active + 2 * t * first + second;
    return { active, mean, square, variance: square - mean * mean, energy: upper(1 + 1 / p, t, T) / p };
  }

  const logNorm = (sigma, p) => (1 - 1 / p) * Math.log(p) - Math.log(2 * sigma) - logGamma(1 / p);

  function density(x, mu, sigma, p) {
    return Math.exp(logNorm(sigma, p) - Math.pow(Math.abs(x - mu) / sigma, p) / p);
  }

  // sigma_GN: variance 1 before rectification.
  function sigmaGn(p) {
    return Math.exp(0.5 * (logGamma(1 / p) - logGamma(3 / p)) - Math.log(p) / p);
  }

  // The root of an increasing function, by bisection down to neighbouring numbers.
  function root(f, low, high) {
    for (let i = 0; i < 200; i++) {
      const middle = 0.5 * (low + high);
      if (middle === low || middle === high) break;
      if (f(middle) < 0) low = middle; else high = middle;
    }
    return 0.5 * (low + high);
  }

  // sigma_RGN: variance 1 after rectification. mu = t / sqrt(v(t)) increases with t; sigma = 1 / sqrt(v(t)).
  function sigmaRgn(mu, p) {
    const excess = (t) => t / Math.sqrt(unit(t, p).variance) - mu;
    let low = -1, high = 1;
    while (excess(low) > 0) low *= 2;
    while (excess(high) < 0) high *= 2;
    return 1 / Math.sqrt(unit(root(excess, low, high), p).variance);
  }

  // t = mu / sigma with P(x > 0) = active. Solved in log T, on whichever of P and Q is smaller.
  function ratioFromActive(active, p) {
    if (active === 0.5) return 0;
    const tail = 2 * Math.min(active, 1 - active);
    const f = tail < 0.5
      ? (y) => tail - gammaPQ(1 / p, Math.exp(y))[1]
      : (y) => gammaPQ(1 / p, Math.exp(y))[0] - (1 - tail);
    const T = Math.exp(root(f, -700, 7));
    return (active < 0.5 ? -1 : 1) * Math.pow(p * T, 1 / p);
  }

  // scale: "gn", "rgn" or a positive number.
  function scaleFor(mu, p, scale) {
    return scale === "gn" ? sigmaGn(p) : scale === "rgn" ? sigmaRgn(mu, p) : scale;
  }

  function fromActive(active, p, scale) {
    const t = ratioFromActive(active, p);
    const sigma = scale === "rgn" ? 1 / Math.sqrt(unit(t, p).variance) : scaleFor(0, p, scale);
    return { mu: t * sigma, sigma, p };
  }

  // All that the explorer shows. entropy: the d(xi)-dimensional entropy in nats.
  function describe(mu, sigma, p) {
    const u = unit(mu / sigma, p);
    const zero = unit(-mu / sigma, p).active;  // the atom P(x = 0)
    const entropy = -u.active * logNorm(sigma, p) + u.energy - (zero > 0 ? zero * Math.log(zero) : 0);
    return {
      active: u.active, atom: zero, mean: sigma * u.mean, variance: sigma * sigma * u.variance,
      l1: u.square > 0 ? u.mean * u.mean / u.square : 0, entropy,
    };
  }

  return { logGamma, gammaPQ, density, sigmaGn, sigmaRgn, scaleFor, fromActive, describe };
})();
