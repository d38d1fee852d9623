"""The page of a day in a shop: pictures by hour and what they mean, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.shop_world import EXPERIMENT, GROUPS
from fairstream.pages.rendering import read_asset
from fairstream.service.dashboard.charts import Chart, Moment, Series
from fairstream.service.dashboard.web import environment
from fairstream.service.gaps import score_in
from fairstream.text import number, percent, plain

_two = partial(number, digits=2)
Hours = Sequence[dict[str, Any]]


def write_page(path: Path, day: dict[str, Any]) -> None:
    """Write the page of a day."""
    hours = [hour for hour in day["hours"] if "everyone" in hour["groups"]]
    template = environment().from_string(Path(__file__).with_name("shop_day.html").read_text(encoding="utf-8"))
    options = day["options"]
    page = template.render(
        title=f"A day in a shop, on {'PostgreSQL' if options['postgres'] else 'SQLite'}",
        css=read_asset("style.css"),
        root="",
        day=day,
        options=options,
        hours=hours,
        totals=totals(hours),
        charts=_charts(hours),
        arms=_arms(day["experiment"], hours),
    )
    path.write_text(page, encoding="utf-8")


def totals(hours: Hours) -> dict[str, dict[str, float]]:
    """Return the sums of the whole day for everyone and each group, and what they mean."""
    found = {}
    for name in ("everyone", *GROUPS):
        sums: dict[str, float] = {}
        for hour in hours:
            for what, n in hour["groups"].get(name, {}).items():
                sums[what] = sums.get(what, 0) + n
        found[name] = {**sums, **_ratios(sums)}
    return found


def _arms(experiment: dict[str, Any] | None, hours: Hours) -> dict[str, float]:
    """Return the true utility of the lists of each arm's model in the hours of the experiment."""
    if experiment is None or experiment["a"] == experiment["b"]:
        return {}
    found = {}
    for arm in ("a", "b"):
        sums = [hour["models"].get(experiment[arm], {}) for hour in hours if hour["hour"] >= EXPERIMENT]
        visits = sum(each.get("visits", 0) for each in sums)
        found[arm.upper()] = sum(each.get("served", 0) for each in sums) / max(1, visits)
    return found


def _ratios(sums: dict[str, float]) -> dict[str, float]:
    visits, best = max(1.0, sums.get("visits", 0)), max(1e-9, sums.get("best", 0))
    return {
        "utility": sums.get("served", 0) / visits,
        "best_utility": best / visits,
        "popular_utility": sums.get("popular", 0) / visits,
        "regret": 1 - sums.get("served", 0) / best,
        "popular_regret": 1 - sums.get("popular", 0) / best,
        "hit_rate": sums.get("hits", 0) / visits,
        "fallback_share": sums.get("fallback", 0) / visits,
    }


def _charts(hours: Hours) -> dict[str, list[Chart]]:
    moments = [
        Moment(None, datetime(2026, 1, 1 + at // 24, hour["hour"], tzinfo=UTC), _script(hour["notes"]))
        for at, hour in enumerate(hours)
    ]

    def of(name: str, what: str) -> list[float | None]:
        return [
            _ratios(hour["groups"][name])[what] if hour["groups"].get(name, {}).get("visits") else None
            for hour in hours
        ]

    def lines(id_: str, title: str, series: list[Series], write: Callable[[float], str]) -> list[Chart]:
        drawn = [line for line in series if any(value is not None for value in line.values)]
        return [Chart(id_, title, moments, drawn, write, from_zero=True)] if drawn else []

    def by_group(what: Callable[[str], list[float | None]]) -> list[Series]:
        return [Series(name, f"line-{place}", what(name)) for place, name in enumerate(GROUPS)]

    everyone = [
        Series("served", "line-0", of("everyone", "utility")),
        Series("recent popularity", "line-1", of("everyone", "popular_utility")),
        Series("best possible", "line-all", of("everyone", "best_utility")),
    ]
    published = [score_in(hour.get("evaluation")) for hour in hours]
    control = [hour.get("control") or {} for hour in hours]
    level = [(each.get("level") or {"group": None, "weight": 1.0}) for each in control]
    milliseconds = [
        Series(f"{name} ms", f"line-{at}", [1000 * hour[name] for hour in hours])
        for at, name in enumerate(("p50", "p99"))
    ]
    return {
        "truth": [
            *lines("utility", "Expected clicks of a list", everyone, _two),
            *lines("regret", "True regret of each group", by_group(lambda name: of(name, "regret")), percent),
            *lines("hits", "Lists with a click", by_group(lambda name: of(name, "hit_rate")), percent),
            *lines(
                "fallback",
                "Answers by popularity",
                [Series("share", "line-0", of("everyone", "fallback_share"))],
                percent,
            ),
        ],
        "service": [
            *lines(
                "published",
                "Quality that the service measured (NDCG)",
                by_group(lambda name: [(score.get("by_group") or {}).get(name) for score in published]),
                partial(number, digits=3),
            ),
            *lines(
                "published-regret",
                "Regret that the service measured",
                by_group(lambda name: [(each.get("regret") or {}).get(name, [None])[0] for each in control]),
                percent,
            ),
            *lines(
                "level",
                "Weight of a group’s choices",
                by_group(lambda name: [min(each["weight"], 60.0) if each["group"] == name else 1.0 for each in level]),
                _two,
            ),
            *lines(
                "coverage",
                "Share of the catalogue that was shown",
                [Series("share", "line-0", [hour["coverage"] for hour in hours])],
                percent,
            ),
        ],
        "load": [
            *lines("latency", "Milliseconds for a list", milliseconds, partial(number, digits=1)),
            *lines(
                "errors",
                "Requests that failed",
                [Series("errors", "line-1", [float(sum(hour["errors"].values())) for hour in hours])],
                plain,
            ),
        ],
    }


def _script(notes: Sequence[str]) -> str:
    """Return what the script did; updates are in the table."""
    return "; ".join(note for note in notes if "update" not in note)[:120]
