"""Everything that the paper ran, done once, in an order that lets it be interrupted anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairstream._version import __version__
from fairstream.errors import ConfigurationError
from fairstream.experiments.config import RunConfig
from fairstream.experiments.identity import run_id
from fairstream.experiments.jobs import Source, finish, jobs_for
from fairstream.experiments.pool import Device, OnStage, execute_all
from fairstream.experiments.run import resolved
from fairstream.experiments.store import Store
from fairstream.paper.catalogue import Catalogue, Entry, row_of
from fairstream.paper.experiments import Experiment
from fairstream.paper.selection import all_choices
from fairstream.paper.settings import FULL, QUICK, ModelName, Scale, Setting
from fairstream.paper.timing import time_methods


@dataclass(frozen=True)
class Reproduction:
    """What is to be reproduced, and where it goes."""

    store: Store
    sources: Mapping[str, Source]
    """Of each data set, where its events are."""
    experiments: Sequence[Experiment]
    models: Sequence[ModelName]
    quick: bool
    seeds: Sequence[int]
    protocol: str
    device: Device
    n_workers: int

    def run(self, on_stage: OnStage, say: Callable[[str], None]) -> list[str]:
        """Do what is left of it; gives a sentence for each run that failed.

        The first seed runs everything and decides what is chosen; the others run what the figures
        show, so that their spread owes nothing to the choosing.
        """
        first, *others = self.seeds
        failed = self._stage("all settings, first seed", self._entries([first], self._wanted()), on_stage)
        choices = all_choices(Catalogue(self.store))
        self.store.write_note("selection", {"choices": [asdict(choice) for choice in choices]})
        for choice in choices:
            where = f"{choice.dataset} {choice.model} {choice.metric}"
            say(f"{choice.method} on {where}: {choice.parameter} = {choice.chosen:g} ({choice.reason})")
        if others:
            shown = self._wanted({(c.dataset, c.model, c.method, c.chosen) for c in choices})
            failed += self._stage("what the figures show, other seeds", self._entries(others, shown), on_stage)
        if any(experiment.name == "time" for experiment in self.experiments):
            cells = [
                (dataset, model) for dataset in self.sources if dataset in self.scale.timed for model in self.models
            ]
            time_methods(self.store, self.sources, cells, self.scale, self.protocol, self.device, on_stage)
        self.store.clear()
        return failed

    @property
    def scale(self) -> Scale:
        return QUICK if self.quick else FULL

    def _wanted(self, chosen: set[tuple[str, str, str, float]] | None = None) -> dict[tuple[str, Any], list[Setting]]:
        """Of each data set and model the settings of all experiments; of families all, or what was chosen."""
        wanted: dict[tuple[str, Any], list[Setting]] = {}
        for experiment in self.experiments:
            for dataset, model in experiment.parts:
                settings = wanted.setdefault((dataset, model), [])
                settings += experiment.fixed(self.scale)
                for family in experiment.families(self.scale, dataset):
                    values = [
                        value
                        for value in family.values
                        if chosen is None or (dataset, model, family.name, value) in chosen
                    ]
                    settings += [Setting.of(family.plain), *(family.at(value) for value in values)]
        return wanted

    def _entries(self, seeds: Iterable[int], wanted: Mapping[tuple[str, Any], Sequence[Setting]]) -> list[Entry]:
        return [
            (dataset, model, setting, seed)
            for seed in seeds
            for (dataset, model), settings in wanted.items()
            if dataset in self.sources and model in self.models
            for setting in dict.fromkeys(settings)
        ]

    def _stage(self, name: str, entries: Sequence[Entry], on_stage: OnStage) -> list[str]:
        configs: dict[str, list[RunConfig]] = {dataset: [] for dataset in self.sources}
        rows = []
        for dataset, model, setting, seed in entries:
            log = self.sources[dataset].read()
            config = self.scale.config(setting, dataset, model, seed=seed, protocol=self.protocol)
            config = resolved(log, config)[0]
            configs[dataset].append(config)
            rows.append(row_of((dataset, model, setting, seed), run_id(log, config)))
        self._note_plan(rows)
        jobs = [
            job for dataset, source in self.sources.items() for job in jobs_for(self.store, source, configs[dataset])
        ]
        tell = on_stage(name, jobs)
        failed = execute_all(jobs, self.store, device=self.device, n_workers=self.n_workers, on_progress=tell)
        for dataset, source in self.sources.items():
            finish(self.store, source, configs[dataset])
        return failed

    def _note_plan(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add runs to the plan in the store, which must be of the same kind."""
        kind = {"version": __version__, "protocol": self.protocol, "quick": self.quick}
        before = self.store.note("plan") or {**kind, "runs": []}
        for name in ("protocol", "quick"):
            if before[name] != kind[name]:
                raise ConfigurationError(
                    f"the store {self.store.folder} was begun with {name} = {before[name]}, not {kind[name]}; "
                    f"choose another folder with --store"
                )
        # By what a run is, not by its id: data that have changed give other ids, and the last are meant.
        runs = {json.dumps({**row, "id": None}, sort_keys=True): row for row in (*before["runs"], *rows)}
        self.store.write_note("plan", {**before, "runs": [runs[about] for about in sorted(runs)]})
