"""The theory of Section 3.1 and Proposition 1, and estimators of its quantities, as plain functions.

Both theorems are one bound (the paper's Corollary in Appendix A) with two ways to weigh the past.
With weights α_t over D_0 … D_{T−1} that sum to 1, sizes m_t and distribution shifts d_t = d_{t,T}, the
excess loss on the next period T is, with probability at least 1 − δ, at most

    2 Σ_t α_t d_t  +  4 ς √( Σ_t α_t² · log(m_t) / m_t · log(2 / δ) ).
     (shift)           (learning error)

`excess_loss_bound` computes it for any weights; `fine_tuning_bound` (Theorem 1) and `retraining_bound`
(Theorem 2) are that function with the weights of the two strategies. Two things differ from the print:

- The paper's closed form of the second term for fine-tuning, (1 + γ)(1 − γ^{2T−4}) / (1 − γ), is not
  the sum Σ_{t≥1} α_t² that its proof arrives at, which is (1 − γ)(1 − γ^{2T−2}) / (1 + γ); at T = 2
  the printed form even vanishes. The functions below use the sum.
- The proof bounds how far Σ_t α_t sup_W |L^{D_t}(W) − L_t(W)| lies above its mean, and takes that mean for
  0. It is a Rademacher complexity, positive for any rich class of models, so the learning error is what
  chance adds to the mean, and not all of the price of learning from few events.

None of the quantities is known in a stream. `item_shift` and `model_shift` estimate d from below,
`retention` γ, and ς can be taken for the standard deviation of the losses, which is the least that it can be
but for the factor √log m. What the estimates rest on is said where they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fairstream.errors import ConfigurationError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Events = tuple[Integers, Integers]
"""The users and the items of a period's events."""
LEAST_RETENTION: Final = 0.01
"""γ lies between this and 1 minus this."""


class ExcessLoss(NamedTuple):
    """The two parts of the bound on the loss beyond the best possible."""

    shift: float
    learning_error: float

    @property
    def total(self) -> float:
        return self.shift + self.learning_error


class Shift(NamedTuple):
    """An estimated distance between two periods; noise can make it negative, where the true one is small."""

    value: float
    standard_error: float


# ── the bounds ───────────────────────────────────────────────────────────────────────────────


def fine_tuning_weights(n_periods: int, gamma: float) -> Floats:
    """α of Theorem 1: γ^{T−1} for D_0 and (1 − γ) γ^{T−t−1} for D_t; the past fades exponentially.

    >>> fine_tuning_weights(3, 0.5)
    array([0.25, 0.25, 0.5 ])
    """
    return weights_since_restart([1.0] * n_periods, 0, gamma)


def retraining_weights(sizes: Sequence[float] | Floats) -> Floats:
    """α of Theorem 2: each event counts the same, m_t / Σ m."""
    m = np.asarray(sizes, dtype=np.float64)
    return m / m.sum()


def weights_since_restart(sizes: Sequence[float] | Floats, started: int, gamma: float) -> Floats:
    """α of a model that was retrained on D_0 … D_s, s = `started`, and fine-tuned on each period since.

    Theorem 1's with ℓ_s, the loss of retraining, in the place of ℓ_0: γ^{T−1−s} m_t / Σ_{t' ≤ s} m_t' for
    t ≤ s and (1 − γ) γ^{T−t−1} after it.

    >>> weights_since_restart([300, 100, 50, 50], 1, 0.5)
    array([0.1875, 0.0625, 0.25  , 0.5   ])
    """
    _check_retention(gamma)
    n_periods = len(sizes)
    if not 0 <= started < n_periods:
        raise ConfigurationError(f"the last restart must be one of the {n_periods} periods, got {started}")
    t = np.arange(started + 1, n_periods)
    before = gamma ** (n_periods - 1 - started) * retraining_weights(sizes[: started + 1])
    return np.concatenate([before, (1 - gamma) * gamma ** (n_periods - t - 1.0)])


def excess_loss_bound(
    weights: Sequence[float] | Floats,
    sizes: Sequence[float] | Floats,
    shifts: Sequence[float] | Floats,
    *,
    delta: float = 0.05,
    scale: float = 1.0,
) -> ExcessLoss:
    """The bound above, for any weights   (Corollary in Appendix A).

    Parameters
    ----------
    weights, sizes, shifts
        α_t, m_t and d_t of the periods so far.
    delta
        δ: the bound holds with probability 1 − δ.
    scale
        ς of Assumption 3, in the unit of the loss; the paper rescales its loss so that it is 1.

    Raises
    ------
    ConfigurationError
        If the numbers are not those of one stream.

    Examples
    --------
    >>> round(excess_loss_bound([0.5, 0.5], [1000, 1000], [0.1, 0.02]).shift, 4)
    0.12

    """
    alpha, m, d = (np.asarray(x, dtype=np.float64) for x in (weights, sizes, shifts))
    if not len(alpha) == len(m) == len(d) > 0:
        raise ConfigurationError(
            f"every period has a weight, a size and a shift, got {len(alpha)}, {len(m)} and {len(d)} of them"
        )
    if (alpha < 0).any() or abs(alpha.sum() - 1) > 1e-6:
        raise ConfigurationError(f"weights must be 0 or more and sum to 1, got a sum of {alpha.sum():g}")
    if not (m >= 2).all() or not (d >= 0).all():
        raise ConfigurationError("every period has at least 2 events and a shift of 0 or more")
    if not 0 < delta < 1 or not scale >= 0:
        raise ConfigurationError(f"delta must be between 0 and 1 and scale 0 or more, got {delta:g} and {scale:g}")
    shift = 2 * float(alpha @ d)
    learning_error = 4 * scale * float(np.sqrt((alpha**2 * np.log(m) / m).sum() * np.log(2 / delta)))
    return ExcessLoss(shift, learning_error)


def fine_tuning_bound(
    sizes: Sequence[float] | Floats,
    shifts: Sequence[float] | Floats,
    gamma: float,
    *,
    started: int = 0,
    delta: float = 0.05,
    scale: float = 1.0,
) -> ExcessLoss:
    """Theorem 1, with the sum that its proof arrives at, and with any sizes; `started` is the last restart.

    >>> round(fine_tuning_bound([1000, 100, 100], [0.3, 0.2, 0.1], 0.5).shift, 4)
    0.35
    """
    return excess_loss_bound(weights_since_restart(sizes, started, gamma), sizes, shifts, delta=delta, scale=scale)


def retraining_bound(
    sizes: Sequence[float] | Floats, shifts: Sequence[float] | Floats, *, delta: float = 0.05, scale: float = 1.0
) -> ExcessLoss:
    """Theorem 2, before its last step, which makes every log(m_t) log(m_0); for equal sizes they are the same.

    >>> round(retraining_bound([1000, 500, 500], [0.3, 0.2, 0.1]).shift, 4)
    0.45
    """
    return excess_loss_bound(retraining_weights(sizes), sizes, shifts, delta=delta, scale=scale)


class Bounds(NamedTuple):
    """What the theory says of the next period, for the two things that can be done now."""

    fine_tuning: ExcessLoss
    retraining: ExcessLoss

    @property
    def saved_by_retraining(self) -> float:
        """How much lower the bound is after retraining; negative where fine-tuning has the lower one."""
        return self.fine_tuning.total - self.retraining.total


def regret_of_fine_tuning(regret: float, bounds: Bounds) -> float:
    """What fine-tuning has cost since the last restart, by the bounds: max(0, regret + what retraining saves now).

    Retraining once it exceeds the price of a restart, in the same unit (loss × periods), is the rule of
    rent or buy: with savings that never turn negative it costs at most twice what the best time in
    hindsight costs, whatever comes.
    """
    return max(0.0, regret + bounds.saved_by_retraining)


# ── estimates from a stream ──────────────────────────────────────────────────────────────────


def item_shift(first: Events, second: Events, *, k: int = 20) -> Shift:
    """Estimate d of two periods by the items alone, in NDCG@k of single events, corrected for sampling noise.

    For rankers that give everyone the same list, the discrepancy `sup_W |L_t(W) − L_t'(W)|` has a closed form:
    the list of the k items whose shares of the events have fallen (or risen) most. It is a lower bound
    of d_{t,t'}, because such rankers are models too, and beside one that finds nothing they are
    pairs of models as in the paper's definition. Who wants which item may change without a trace in it.

    The list is chosen by the events of one half of the users and measured by those of the other, and the
    other way round. So without drift the estimate is 0 on average, also where events of one user
    depend on each other; with drift it is a little below the supremum, because noise chooses the list. It assumes that
    the users of either half are drawn alike.

    Parameters
    ----------
    first, second
        The users and the items (rows) of the events of each period.
    k
        The length of the list.

    Returns
    -------
    Shift
        The estimate and its standard error (over users); 0 and infinity where a half has no events.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> (users, items), (later_users, later_items) = rng.integers(0, 40, size=(2, 2, 4000))
    >>> still = item_shift((users, items), (later_users, later_items))
    >>> moved = item_shift((users, items), (later_users, later_items + 40))
    >>> abs(still.value) < 3 * still.standard_error, round(moved.value, 1)
    (True, 0.2)

    """
    if k < 1:
        raise ConfigurationError(f"a list has at least one item, got k = {k}")
    n_items = 1 + max((int(items.max(initial=-1)) for _, items in (first, second)), default=-1)
    halves = [
        [(users[users % 2 == half], items[users % 2 == half]) for users, items in (first, second)] for half in (0, 1)
    ]
    if any(len(items) == 0 for half in halves for _, items in half):
        return Shift(0.0, np.inf)
    gains = 1 / np.log2(np.arange(2, min(k, n_items) + 2))
    values, variances = [], []
    for chosen, measured in (halves, halves[::-1]):
        shares = [np.bincount(items, minlength=n_items) / len(items) for _, items in chosen]
        order = np.argsort(shares[0] - shares[1], kind="stable")
        lists = np.stack([order[::-1][: len(gains)], order[: len(gains)]])  # the most fallen, the most risen
        sizes = np.abs((shares[0] - shares[1])[lists] @ gains)
        of_item = np.zeros(n_items)
        of_item[lists[int(sizes.argmax())]] = gains if sizes.argmax() == 0 else -gains
        (before, its_variance), (after, variance) = (_mean_over_events(of_item, *events) for events in measured)
        values.append(before - after)
        variances.append(its_variance + variance)
    return Shift(float(np.mean(values)), float(np.sqrt(np.mean(variances) / 2)))


def model_shift(first: Floats, second: Floats) -> Shift:
    """Estimate d of two periods by how much better one fixed model is than another in each, in the unit of the metric.

    `||L_t(W) − L_t(W')| − |L_t'(W) − L_t'(W')||` for any two models is a lower bound of d_{t,t'}: the supremum over
    all pairs is the paper's d^{HΔH}. Neither model may have been trained on either period, and the users of each
    are taken for independent draws. Noise enlarges the size of a difference; its variance is subtracted from the
    square.

    Parameters
    ----------
    first, second
        (U, 2) of each period: the values of the two models for each tested user.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> before, after = (rng.normal([0.4, b], 0.1, size=(5000, 2)) for b in (0.3, 0.1))
    >>> round(model_shift(before, after).value, 2)
    0.2

    """
    means, variances = [], []
    for values in (first, second):
        if values.ndim != 2 or values.shape[1] != 2 or len(values) < 2:
            raise ConfigurationError(f"each period has two columns of values of at least 2 users, got {values.shape}")
        difference = values[:, 0] - values[:, 1]
        means.append(abs(difference.mean()))
        variances.append(difference.var(ddof=1) / len(difference))
    variance = sum(variances)
    return Shift(float(np.sqrt(max(0.0, (means[0] - means[1]) ** 2 - variance))), float(np.sqrt(variance)))


def retention(losses: Sequence[float]) -> float | None:
    """Estimate γ of Assumption 4 from the mean losses of the epochs of a fine-tuning; None where they do not tell.

    Were all losses quadratic with one curvature, W_t − W* = γ (W_{t−1} − W*), with W* the best for D_t alone, and
    gradient descent would bring L^{D_t} down by the same share of what is left in each epoch:
    L_e − L* = (L_0 − L*) ρ^e and γ = ρ^{E / 2} after E epochs. ρ follows from three epochs at equal distances
    (Aitken's rule). A loss that falls in a straight line is far from W*: γ is near 1. At least three epochs are
    needed, and a loss that falls.

    >>> round(retention([0.5 + 0.2 * 0.64**e for e in range(10)]), 4)  # 0.8 in each of ten epochs
    0.1074
    """
    n_epochs = len(losses)
    step = (n_epochs - 1) // 2
    if step < 1:
        return None
    last, middle, first = (losses[n_epochs - 1 - n * step] for n in range(3))
    if not first > middle:
        return None
    left = (middle - last) / (first - middle)
    gamma = max(left, 0.0) ** (n_epochs / (2 * step))
    return float(np.clip(gamma, LEAST_RETENTION, 1 - LEAST_RETENTION))


def _mean_over_events(of_item: Floats, users: Integers, items: Integers) -> tuple[float, float]:
    """The mean of a value of each item over events, and its variance, the events of a user together."""
    values = of_item[items]
    mean = float(values.mean())
    _, rows = np.unique(users, return_inverse=True)
    by_user = np.bincount(rows, weights=values - mean)
    n_users = len(by_user)
    return mean, float((by_user**2).sum() / len(values) ** 2 * n_users / max(n_users - 1, 1))


def _check_retention(gamma: float) -> None:
    if not 0 < gamma < 1:
        raise ConfigurationError(f"gamma, how much fine-tuning retains, must be between 0 and 1, got {gamma:g}")


# ── Proposition 1 ────────────────────────────────────────────────────────────────────────────


def sufficient_fairness_weight(grad_rec: Floats, grad_dpd: Floats) -> float:
    """The λ of Proposition 1's proof: −2 ⟨∇L_rec, ∇DPD⟩ / ‖∇DPD‖².

    Where L_rec causes unfairness (⟨∇L_rec, ∇DPD⟩ ≤ 0), a small gradient step on
    L_rec + λ L_fair with this λ moves DPD towards 0, whatever its sign.
    """
    return float(-2 * (grad_rec @ grad_dpd) / (grad_dpd @ grad_dpd))
