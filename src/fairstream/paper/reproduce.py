"""All runs of the paper, each computed once; interrupted anywhere, it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairstream import ConfigurationError, FairstreamError, RunConfig, __version__
from fairstream.cluster import connect
from fairstream.experiments import Device, Source, Store, execute_runs, run_id
from fairstream.paper.catalogue import Catalogue, Entry, all_choices, row_of
from fairstream.paper.settings import FULL, QUICK, Experiment, ModelName, Scale, Setting
from fairstream.paper.timing import OnStage, time_methods


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
    n_workers: int | None
    cluster: str | None = None
    """"local" or HOST:PORT: compute the runs on Ray; running times are always measured on this machine."""

    def run(self, on_stage: OnStage, log_line: Callable[[str], None]) -> list[FairstreamError]:
        """Compute what is missing; returns the errors of the runs that failed.

        The first seed runs everything and decides what is chosen; the others run what the figures
        show, so that their spread does not depend on the choice.
        """
        with ExitStack() as stack:
            if self.cluster is not None:  # one connection for all stages
                stack.enter_context(connect(self.cluster, n_workers=self.n_workers))
            return self._run(on_stage, log_line)

    def _run(self, on_stage: OnStage, log_line: Callable[[str], None]) -> list[FairstreamError]:
        first, *others = self.seeds
        errors = self._stage("all settings, first seed", self._entries([first], self._wanted()), on_stage)
        choices = all_choices(Catalogue(self.store))
        for choice in choices:
            where = f"{choice.dataset} {choice.model} {choice.metric}"
            log_line(f"{choice.method} on {where}: {choice.parameter} = {choice.chosen:g} ({choice.reason})")
        if others:
            shown = self._wanted({(c.dataset, c.model, c.method, c.chosen) for c in choices})
            errors += self._stage("what the figures show, other seeds", self._entries(others, shown), on_stage)
        if any(experiment.name == "time" for experiment in self.experiments):
            cells = [
                (dataset, model) for dataset in self.sources if dataset in self.scale.timed for model in self.models
            ]
            time_methods(self.store, self.sources, cells, self.scale, self.protocol, self.device, on_stage)
        self.store.clear()
        return errors

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

    def _stage(self, name: str, entries: Sequence[Entry], on_stage: OnStage) -> list[FairstreamError]:
        configs: dict[str, list[RunConfig]] = {dataset: [] for dataset in self.sources}
        rows = []
        for dataset, model, setting, seed in entries:
            log = self.sources[dataset].read()
            config = self.scale.config(setting, dataset, model, seed=seed, protocol=self.protocol)
            configs[dataset].append(config)
            rows.append(row_of((dataset, model, setting, seed), run_id(log, config)))
        self._note_plan(rows)
        return execute_runs(
            self.store,
            [(source, configs[dataset]) for dataset, source in self.sources.items()],
            device=self.device,
            n_workers=self.n_workers,
            cluster=self.cluster,
            on_start=partial(on_stage, name),
        )

    def _note_plan(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add runs to the plan in the store, which must be of the same kind."""
        kind = {"version": __version__, "protocol": self.protocol, "quick": self.quick}
        before = self.store.note("plan") or {**kind, "runs": []}
        for name in ("protocol", "quick"):
            if before[name] != kind[name]:
                raise ConfigurationError(
                    f"the store {self.store.folder} was started with {name} = {before[name]}, not {kind[name]}; "
                    f"choose another folder with --store"
                )
        # By what a run is, not by its id: data that have changed give other ids, and the last are meant.
        runs = {json.dumps({**row, "id": None}, sort_keys=True): row for row in (*before["runs"], *rows)}
        self.store.write_note("plan", {**before, "runs": [runs[about] for about in sorted(runs)]})
