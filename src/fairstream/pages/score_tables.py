"""Tables of runs, comparisons and frontiers; the command line and the reports show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairstream.display import Table
from fairstream.evaluation.by_group import ordered
from fairstream.evaluation.score_cells import (
    ABOUT_REGRET,
    CHANCE_MARK,
    LEGEND,
    alignment,
    difference_cells,
    gap_cells,
    gap_headings,
    group_cells,
    group_headings,
    plus_minus,
    regret_sentences,
    score_cells,
    shown_groups,
)
from fairstream.experiments.config import TASK_NAMES
from fairstream.models import NO_LEVEL, Level
from fairstream.text import MISSING, between, count, counted, number, percent, signed, signed_percent

if TYPE_CHECKING:
    from fairstream.experiments import Comparison, Frontier

MAX_LISTED = 20  # tables give only the number of groups if there are more
_INTERVAL = "95 % interval"
_SLICES = {
    "warm_users": "users seen before",
    "cold_users": "users not seen before",
    "no_group": "users without a group",
    "history_0": "first event of a user",
    "history_1": "after 1 event of the user",
    "history_2_4": "after 2 to 4 events",
    "history_5_19": "after 5 to 19 events",
    "history_20_plus": "after 20 events or more",
    "new_items": "items first seen in the last period",
    "cold_items": "items nobody has had yet",
}

Document = Mapping[str, Any]  # a run as JSON


# ── runs ─────────────────────────────────────────────────────────────────────────────────


def period_table(document: Document, task: str, others: Mapping[str, Document] | None = None) -> Table:
    """Return the main metric by period, with the mean over the periods after pre-training in the last row.

    The means of `others`, the runs that this one has to beat, follow.
    """
    data, config, timing = document["data"], document["config"], document["timing"]
    main, (headings, cells) = next(iter(document["summary"][task])), _scores_of(document)
    several = f", mean of {len(config['seed'])} seeds" if isinstance(config["seed"], list) else ""
    update_seconds = _update_seconds(document)

    def row(period: str, step: str, result: Document, seconds: Sequence[float | None]) -> list[str]:
        return [period, step, *cells(result[task][main]), _mean_seconds(seconds)]

    rows = []
    all_seconds = [timing["pretrain_s"] if timing else None, *update_seconds]
    for result, seconds in zip([document["pretrained"], *document["periods"]], all_seconds, strict=True):
        t = result["t"]
        when = f" from {data['period_begins'][t].replace('T', ' ')}" if data["period_begins"] else ""
        rows.append(row(f"{t}{when}", result["step"] if t else "pre-train", result["tasks"], [seconds]))
    rows += [[], row("mean", "", document["summary"], update_seconds)]
    for name, other in (others or {}).items():
        rows.append(row("mean", name.replace("-", "\n"), other["summary"], _update_seconds(other)))
    title = f"{config['method']}, evaluated on {TASK_NAMES[task]}{several}"
    return Table(["period", "step", main, *headings, "seconds"], rows, title, _caption(document, task, main), "rl")


def _levels(document: Document) -> list[str]:
    """Return a line on the levels in force, if there were any: each with the period from which it was served."""
    changes, before = [], str(NO_LEVEL)
    for result in [document["pretrained"], *document["periods"]]:
        # Several seeds have a list of them.
        stored = result["levels"] if "levels" in result else [result.get("level") or NO_LEVEL]
        level = " / ".join(str(Level(*each)) for each in stored)
        if level != before:
            changes.append(f"{level} from period {result['t']} on")
        before = level
    return [f"level: {', '.join(changes)}"] if changes else []


def metric_table(document: Document, task: str) -> Table:
    """Return every metric, averaged over the periods."""
    headings, cells = _scores_of(document)
    rows = [[metric, *cells(score)] for metric, score in document["summary"][task].items()]
    return Table(["metric", "mean", *headings], rows, f"All metrics on {TASK_NAMES[task]}, mean over the periods")


def _scores_of(document: Document) -> tuple[list[str], Callable[[Mapping[str, Any]], list[str]]]:
    """Return the headings after the mean, and the cells of a score."""
    groups = document["data"]["groups"]
    shown = shown_groups(groups)
    return gap_headings(shown) if groups else [], partial(score_cells, shown=shown, has_groups=bool(groups))


def group_table(documents: Mapping[str, Document], task: str, metric: str | None = None) -> Table:
    """Return the score of each group, its regret and its gap to the rest in each run, averaged over the periods."""
    first = next(iter(documents.values()))
    metric, names = metric or next(iter(first["summary"][task])), ordered(first["data"]["groups"])
    several, scores = len(documents) > 1, [document["summary"][task][metric] for document in documents.values()]
    like = next((score for score in scores if score.get("regret")), scores[0])
    headings, rows, captions = group_headings(like, metric), [], [LEGEND]
    for label, score in zip(documents, scores, strict=True):
        begin, gaps = [label] if several else [], score.get("gaps") or {}
        excluded = [name for name in names if not gaps.get(name)]
        listed = len(excluded) <= MAX_LISTED
        for name in names:
            if name not in excluded:
                mean, *rest = group_cells(score, name)
                # A run without levels, such as a reranking, has no regret among others that do.
                missing = [MISSING] * (len(headings) - 1 - len(rest))
                rows.append([*begin, name, mean, *rest[:1], *missing, *rest[1:]])
            elif listed:
                rows.append([*begin, name, "excluded", *[""] * (len(headings) - 1)])
        if not listed:
            rows.append([*begin, f"{len(excluded)} groups", "excluded", *[""] * (len(headings) - 1)])
        captions += [f"{label}: {line}" if several else line for line in regret_sentences(score)]
    all_headings = [*(["method"] if several else []), "group", *headings]
    return Table(
        all_headings,
        rows,
        f"{metric} by {first['data']['group']} on {TASK_NAMES[task]}, mean over the periods",
        "\n".join([*captions, *([ABOUT_REGRET] if like.get("regret") else [])]),
        alignment(all_headings, "ll" if several else "l"),
    )


def slice_table(document: Document, task: str) -> Table:
    """Return the slices, averaged over the periods."""
    main = next(iter(document["summary"][task]))
    shown = shown_groups(document["data"]["groups"])
    rows = []
    for name, part in document["slices"][task].items():
        if part["n_users"]:
            score = part[main]
            groups = [number(score["by_group"].get(group)) for group in shown]
            gap = [signed(score["performance_disparity"])] if shown else []
            sizes = [count(part["n_users"]), count(part["n_positives"])]
            rows.append([_SLICES[name], *sizes, number(score["mean"]), *groups, *gap])
    headings = ["slice", "users", "events", main, *shown, *(["PD"] if shown else [])]
    return Table(headings, rows, f"{main} on {TASK_NAMES[task]} by slice, mean over the periods")


def method_table(documents: Mapping[str, Document], comparison: Comparison) -> Table:
    """Return one row for each run of a comparison, in its order, averaged over the periods."""
    groups, task, metric = next(iter(documents.values()))["data"]["groups"], comparison.task, comparison.metric
    rows = []
    for (name, document), contender in zip(documents.items(), comparison.contenders, strict=True):
        score = document["summary"][task][metric]
        newcomers = document["slices"][task]["cold_users"][metric]["mean"]
        gap, interval, *_ = gap_cells(score["disparity"])
        means = [score["mean"], *(score["by_group"][group] for group in groups)]
        size, seconds = number(score["abs_performance_disparity"]), _mean_seconds(_update_seconds(document))
        regret = [percent(contender.regret_to_best[group].value) for group in groups]
        rows.append([name, *map(number, means), *regret, number(newcomers), gap, interval, size, seconds])
    regrets = [f"regret {group}" for group in groups]
    headings = ["", metric, *groups, *regrets, "newcomers", "PD", _INTERVAL, "mean |PD|", "s / update"]
    caption = f"{LEGEND}\nregret: how much less a group gets than its best of these systems, at any of their levels"
    return Table(headings, rows, f"{metric} on {TASK_NAMES[task]}, mean over the periods", caption)


def recovery_line(probe: Mapping[str, Any]) -> str:
    """Say how well a classifier recovers the group from the user embeddings."""
    accuracy, interval = number(probe["balanced_accuracy"]) + plus_minus(probe.get("seed_sd")), probe["interval"]
    ends = "" if interval is None else f"{_INTERVAL} {between(interval)}, "
    return (
        f"A new classifier recovers the group of {probe['n_users']:,} users from their embeddings with a "
        f"balanced accuracy of {accuracy} ({ends}by chance {number(probe['chance'])})"
    )


def _update_seconds(document: Document) -> list[float | None]:
    """Return the seconds of each period, training and reranking; None if the run did not keep them."""
    timing = document["timing"]
    if timing is None:
        return [None] * len(document["periods"])
    training = timing["update_s"]
    return [sum(both) for both in zip(training, timing.get("rerank_s", [0.0] * len(training)), strict=True)]


def _mean_seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.2f}" if known else MISSING


def _caption(document: Document, task: str, main: str) -> str:
    score, sizes = document["summary"][task][main], []
    groups, first = document["data"]["groups"], document["data"]["advantaged"]
    if not groups:
        return ""
    if first is not None:
        of = f" of {first}" if len(groups) > 2 else ""
        size = f"{number(score['abs_performance_disparity'])} (null mean {number(score['null_mean'])})"
        sizes.append(f"mean |PD|{of} {size}")
    if spread := score["spread"]:
        p = "" if spread["p_value"] is None else f" (p = {number(spread['p_value'], 3)})"
        sizes.append(f"spread between groups {number(spread['value'])}{p}")
    lines = [", ".join(sizes), "null: the size it has on average (null mean) where the groups' means are equal", LEGEND]
    lines += _levels(document)
    excluded: dict[str, int] = {}
    for period in document["periods"]:
        for name, n in period["tasks"][task]["excluded_groups"].items():
            excluded[name] = max(n, excluded.get(name, 0))
    few = f"excluded in some period (fewer than {document['config']['min_group_size']} users)"
    if len(excluded) > MAX_LISTED:
        lines.append(
            f"{few}: {len(excluded)} of {len(groups)} groups, the largest with at most {max(excluded.values())}; "
            f"choose a coarser column, or make classes of its values"
        )
    elif excluded:
        named = (f"{name} (at most {counted(n, 'user')})" for name, n in sorted(excluded.items()))
        lines.append(f"{few}: {', '.join(named)}")
    return "\n".join(lines)


# ── comparisons ──────────────────────────────────────────────────────────────────────────


def difference_table(comparison: Comparison, against: str) -> Table:
    """Return every other contender minus one."""
    gap = "mean |PD|" if comparison.n_groups == 2 else "behind by"
    regret = ["largest regret", _INTERVAL] if comparison.attainable else []
    rows = []
    for one in comparison.against(against):
        cells = [one.label, *difference_cells(one.performance), *difference_cells(one.disparity)]
        rows.append([*cells, *difference_cells(one.largest_regret)[: len(regret)]])
    return Table(
        ["method", comparison.metric, _INTERVAL, gap, _INTERVAL, *regret],
        rows,
        f"The others minus {against}, on the same users and seeds",
        f"{CHANCE_MARK} the interval contains 0",
    )


def not_beaten(comparison: Comparison, name: str) -> str | None:
    """Return a sentence if the first contender is not better than the second, which is called `name`."""
    mine, other = comparison.contenders
    difference = next(pair.performance for pair in comparison.differences if pair.label == mine.label)
    if difference.value > 0 and difference.excludes_zero:
        return None
    verb = "is better than" if difference.excludes_zero else "cannot be told from"
    return (
        f"On {TASK_NAMES[comparison.task]}, {name} ({number(other.performance.value)}) {verb} this model "
        f"({number(mine.performance.value)})."
    )


# ── frontiers ────────────────────────────────────────────────────────────────────────────


def change_table(frontier: Frontier) -> Table:
    """Return every other level minus none."""
    names = ordered(frontier.groups) if len(frontier.groups) == 2 else []
    base, rows = frontier.baseline, []
    for level in frontier.levels:
        if level is base:
            continue
        change = level.quality_change
        value, low, high = (_relative(part, base.quality) for part in (change.value, change.low, change.high))
        mark = CHANCE_MARK if change.includes_zero else " "
        before, after = ([one.scores.by_group[name] for name in names] for one in (base, level))
        by_group = [
            MISSING if not then or now is None else _relative(now - then, then)
            for then, now in zip(before, after, strict=True)
        ]
        quality = [value + mark, f"{low} … {high}"]
        rows.append([frontier.name_of(level), *quality, *by_group, *difference_cells(level.gap_change)])
    return Table(
        ["level", frontier.metric, _INTERVAL, *names, "PD" if names else "largest gap", _INTERVAL],
        rows,
        "The levels minus none, on the same users",
        f"{CHANCE_MARK} the interval contains 0; the quality in percent of that without a lever",
        align="r",
    )


def _relative(change: float, base: float) -> str:
    return signed_percent(change / base if base else 0.0)
