"""Rerank by integer programming: the program itself, handed to HiGHS. Slow and sure."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from fairstream.data import Rows
from fairstream.errors import ConfigurationError
from fairstream.paper.rerank import Program, Reranking

_INFEASIBLE, _FAILED = 2, 4


def rerank_exact(program: Program, *, time_limit: float = np.inf) -> Reranking | None:
    """The best lists within the tolerance; None where there are none.

    It is the measure of `rerank`, which finds nearly the same in a fraction of the time. With a
    `time_limit` in seconds, the best lists found until then.

    >>> scores = np.array([[9.0, 8.0, 1.0], [9.0, 2.0, 1.0]])
    >>> found = rerank_exact(Program.of(scores, np.array([0, 1]), k=2, tolerance=0.2))
    >>> found.columns.tolist(), found.value, round(found.gap, 3)
    ([[0, 2], [0, 1]], 21.0, -0.167)
    """
    user, column = np.nonzero(program.is_candidate)
    if len(user) == 0:
        return program.reranking(program.is_candidate)
    solved = _solved(program, user, column, time_limit, presolve=True)
    if solved.status == _FAILED:  # its presolve stumbles over a few small programs with many equal scores
        solved = _solved(program, user, column, time_limit, presolve=False)
    if solved.status == _INFEASIBLE:
        return None
    if solved.x is None:
        raise ConfigurationError(
            f"no lists were found within a time_limit of {time_limit:g} seconds ({solved.message}); allow more"
        )
    chosen = np.zeros(program.scores.shape, dtype=np.bool_)
    chosen[user, column] = solved.x > 0.5
    return program.reranking(chosen)


def _solved(program: Program, user: Rows, column: Rows, time_limit: float, *, presolve: bool) -> OptimizeResult:
    """One variable for each candidate that is there."""
    n = len(user)
    one_each = csr_array((np.ones(n), (user, np.arange(n))), shape=(len(program.scores), n))
    # HiGHS takes a constraint as met within 1e-6: in units of the smallest exchange that is nothing.
    unit = np.abs(program.weights[program.weights != 0]).min(initial=1.0)
    of_gap = csr_array((program.weights[user] * program.relevant[user, column] / unit)[None])
    return milp(
        -program.scores[user, column],
        integrality=np.ones(n),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, program.lengths, program.lengths),
            LinearConstraint(of_gap, -program.tolerance / unit, program.tolerance / unit),
        ],
        options={"mip_rel_gap": 0.0, "presolve": presolve, "time_limit": time_limit},
    )
