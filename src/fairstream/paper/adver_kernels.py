"""The Triton kernels of Adver's discriminator.

A step is two kernels: `discriminator_pass` computes the loss and its derivative δ by the input of each layer, a few
rows a program, and `discriminator_update` the gradient δᵀh and Adam of a tile of weights. The matrices of all layers
lie behind one another in one tensor: the weights in `w_at`, each layer's input in `h_at` and `delta_at`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _shape(at):
    """(n_in, n_out) of a layer, where its input and its output begin in a row of h, and its weights and biases."""
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5)


@triton.jit
def _product(
    a_at, w_at, row, column, n_rows, n_sum, n_columns,
    TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(ROWS, TILE) of a (n_rows, n_sum) times w (n_sum, n_columns), or times its transpose."""
    total = tl.zeros((ROWS, TILE), tl.float32)
    for start in range(0, n_sum, TILE):
        k = start + tl.arange(0, TILE)
        a = tl.load(
            a_at + row[:, None] * n_sum + k[None, :], mask=(row < n_rows)[:, None] & (k < n_sum)[None, :], other=0.0
        )
        if TRANSPOSED:
            w_of = w_at + column[None, :] * n_sum + k[:, None]
        else:
            w_of = w_at + k[:, None] * n_columns + column[None, :]
        w = tl.load(w_of, mask=(k < n_sum)[:, None] & (column < n_columns)[None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    return total


@triton.jit
def _slopes(h, keep_at, place, mask, slope, scale):
    """a: the leaky ReLU's slope · keep / (1 − p)."""
    return tl.where(h > 0, 1.0, slope) * tl.load(keep_at + place, mask=mask, other=0).to(tl.float32) * scale


@triton.jit
def _loss_and_slope(s, code, n_known, group):
    """L_D = mean over the known of logsumexp(s) − s_g,   ∂/∂s = (softmax(s) − 1_g) / their number."""
    weight = tl.where(code >= 0, 1.0 / n_known, 0.0)
    largest = tl.max(s, axis=1)
    e = tl.exp(s - largest[:, None])
    total = tl.sum(e, axis=1)
    is_own = group[None, :] == code[:, None]
    own = tl.sum(tl.where(is_own, s, 0.0), axis=1)
    loss = weight * (tl.log(total) + largest - own)
    return loss, (e / total[:, None] - tl.where(is_own, 1.0, 0.0)) * weight[:, None]


@triton.jit(do_not_specialize=["i", "n_rows"])
def discriminator_pass(
    layers_at, h_at, delta_at, keep_at, codes_at, n_known_at, losses_at, w_at, i, n_rows, n_columns, scale, slope,
    LAYERS: tl.constexpr, N_GROUPS: tl.constexpr, GROUPS: tl.constexpr, WITH_INPUT: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """h, L_D and δ of ROWS rows; `layers_at` (LAYERS, 8) has the shape and the places of each layer.

    h_{l+1} = a_{l+1} ∘ (W_l h_l + b_l),   δ_l = a_l ∘ (W_lᵀ δ_{l+1}),   without a for the rows and the scores. The
    threads of a program exchange h and δ through memory.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < n_rows
    keep_at += i * n_columns * n_rows
    for layer in range(LAYERS):
        n_in, n_out, c_in, c_out, w_0, b_0 = _shape(layers_at + layer * 8)
        for first in range(0, n_out, TILE):
            out = first + tl.arange(0, TILE)
            z = _product(h_at + c_in * n_rows, w_at + w_0, row, out, n_rows, n_in, n_out, True, ROWS, TILE)
            z += tl.load(w_at + b_0 + out, mask=out < n_out, other=0.0)[None, :]
            mask = is_row[:, None] & (out < n_out)[None, :]
            place = c_out * n_rows + row[:, None] * n_out + out[None, :]
            a = _slopes(z, keep_at, place, mask, slope, scale)
            tl.store(h_at + place, z * tl.where(layer < LAYERS - 1, a, 1.0), mask=mask)
        tl.debug_barrier()

    group = tl.arange(0, GROUPS)
    is_group = (group < N_GROUPS)[None, :]
    scores = tl.load(layers_at + (LAYERS * 8 - 5)) * n_rows + row[:, None] * N_GROUPS + group[None, :]
    s = tl.load(h_at + scores, mask=is_row[:, None] & is_group, other=0.0)
    code = tl.load(codes_at + row, mask=is_row, other=-1)
    n_known = tl.load(n_known_at).to(tl.float32)
    loss, delta = _loss_and_slope(tl.where(is_group, s, float("-inf")), code, n_known, group)
    tl.store(losses_at + row, loss, mask=is_row)
    tl.store(delta_at + scores, delta, mask=is_row[:, None] & is_group)
    tl.debug_barrier()

    for back in range(LAYERS if WITH_INPUT else LAYERS - 1):
        layer = LAYERS - 1 - back
        n_in, n_out, c_in, c_out, w_0, _ = _shape(layers_at + layer * 8)
        for first in range(0, n_in, TILE):
            k = first + tl.arange(0, TILE)
            change = _product(delta_at + c_out * n_rows, w_at + w_0, row, k, n_rows, n_out, n_in, False, ROWS, TILE)
            mask = is_row[:, None] & (k < n_in)[None, :]
            place = c_in * n_rows + row[:, None] * n_in + k[None, :]
            a = _slopes(tl.load(h_at + place, mask=mask, other=0.0), keep_at, place, mask, slope, scale)
            tl.store(delta_at + place, change * tl.where(layer > 0, a, 1.0), mask=mask)
        tl.debug_barrier()


@triton.jit
def _adam(at, mask, grad, step_size, square_scale, w_at, m_at, v_at, l2, eps, betas_at):
    """One step of Adam on the numbers at `at`, as `store_adam` of matrix factorisation takes it."""
    w = tl.load(w_at + at, mask=mask, other=0.0)
    m = tl.load(m_at + at, mask=mask, other=0.0)
    v = tl.load(v_at + at, mask=mask, other=0.0)
    grad += l2 * w
    m += tl.load(betas_at).to(tl.float32) * (grad - m)
    v = v * tl.load(betas_at + 3).to(tl.float32) + tl.load(betas_at + 1).to(tl.float32) * grad * grad
    tl.store(w_at + at, w - step_size * m / (tl.sqrt_rn(v) * square_scale + eps), mask=mask)
    tl.store(m_at + at, m, mask=mask)
    tl.store(v_at + at, v, mask=mask)


@triton.jit(do_not_specialize=["i", "n_rows"])
def discriminator_update(
    tiles_at, h_at, delta_at, w_at, m_at, v_at, n_at, lr_at, l2, eps, betas_at, i, n_rows,
    TILE: tl.constexpr,
):  # fmt: skip
    """Gradient and Adam of TILE × TILE weights, and of the biases of the same rows if they are the first.

    `n_at` counts the updates of each row before this batch, at the place of its bias.
    """
    at = tiles_at + tl.program_id(0) * 8
    n_in, n_out, c_in, c_out, w_0, b_0 = _shape(at)
    first_out, first_in = tl.load(at + 6), tl.load(at + 7)
    out, k = first_out + tl.arange(0, TILE), first_in + tl.arange(0, TILE)
    is_out, is_in = out < n_out, k < n_in
    grad, bias_grad = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in range(0, n_rows, TILE):
        row = start + tl.arange(0, TILE)
        is_row = row < n_rows
        delta_of = delta_at + c_out * n_rows + row[None, :] * n_out + out[:, None]
        delta = tl.load(delta_of, mask=is_out[:, None] & is_row[None, :], other=0.0)
        h_of = h_at + c_in * n_rows + row[:, None] * n_in + k[None, :]
        h = tl.load(h_of, mask=is_row[:, None] & is_in[None, :], other=0.0)
        grad = tl.dot(delta, h, grad, input_precision="ieee")
        bias_grad += tl.sum(delta, axis=1)
    n = (tl.load(n_at + b_0 + out, mask=is_out, other=0.0) + i + 1.0).to(tl.float64)
    # In float64: in float32 the first digits of 1 − βⁿ would cancel.
    power_1, power_2 = tl.exp(n * tl.load(betas_at + 4)), tl.exp(n * tl.load(betas_at + 5))
    step_size = (tl.load(lr_at) / (1.0 - power_1)).to(tl.float32)
    scale = (1.0 / tl.sqrt(1.0 - power_2)).to(tl.float32)
    weights, mask = w_0 + out[:, None] * n_in + k[None, :], is_out[:, None] & is_in[None, :]
    _adam(weights, mask, grad, step_size[:, None], scale[:, None], w_at, m_at, v_at, l2, eps, betas_at)
    if first_in == 0:
        _adam(b_0 + out, is_out, bias_grad, step_size, scale, w_at, m_at, v_at, l2, eps, betas_at)
