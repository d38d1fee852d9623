"""Compute all runs of the paper, each once; the same call resumes an interrupted reproduction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairstream import ConfigurationError, FairstreamError, __version__
from fairstream.experiments import Device, PlannedRun, Source, Store, execute_runs, plan_runs
from fairstream.paper.catalogue import Catalogue, Entry, all_choices, row_of
from fairstream.paper.collect import collect_findings
from fairstream.paper.findings import Findings
from fairstream.paper.run import PaperRun
from fairstream.paper.settings import EXPERIMENTS, FULL, QUICK, Chosen, Experiment, ModelName, Part, Scale, Setting
from fairstream.paper.timing import OnStage, time_methods


@dataclass(frozen=True)
class Reproduction:
    """Which experiments to reproduce, and where the results go."""

    store: Store
    sources: Mapping[str, Source]  # the events of each data set
    experiments: Sequence[Experiment]
    models: Sequence[ModelName]
    quick: bool
    seeds: Sequence[int]
    protocol: str
    device: Device
    n_workers: int | None

    def run(self, on_stage: OnStage, log_line: Callable[[str], None]) -> tuple[list[FairstreamError], Findings]:
        """Compute the missing runs; return the errors of failed runs, and the findings.

        The first seed runs everything and decides every choice; the others run what the figures
        show, so that their spread does not depend on the choice.
        """
        first, *others = self.seeds
        errors = self._stage("all settings, first seed", [first], None, on_stage)
        catalogue = Catalogue(self.store)
        choices = all_choices(catalogue)
        for choice in choices:
            where = f"{choice.dataset} {choice.model} {choice.metric}"
            log_line(f"{choice.method} on {where}: {choice.parameter} = {choice.chosen:g} ({choice.reason})")
        if others:
            chosen = {(c.dataset, c.model, c.method, c.chosen) for c in choices}
            errors += self._stage("what the figures show, other seeds", others, chosen, on_stage)
            catalogue.read_plan()
        if any(experiment.name == "time" for experiment in self.experiments):
            cells = [
                (dataset, model) for dataset in self.sources if dataset in self.scale.timed for model in self.models
            ]
            time_methods(self.store, self.sources, cells, self.scale, self.protocol, self.device, on_stage)
        return errors, collect_findings(catalogue, choices)

    @property
    def scale(self) -> Scale:
        return QUICK if self.quick else FULL

    def _entries(self, seeds: Iterable[int], chosen: Chosen | None) -> list[Entry]:
        """Return the runs of all experiments, with every value of a family or the chosen ones."""
        settings: dict[Part, dict[Setting, None]] = {}
        for experiment in self.experiments:
            for dataset, model in experiment.parts:
                if dataset in self.sources and model in self.models:
                    planned = experiment.settings(self.scale, dataset, model, chosen)
                    settings.setdefault((dataset, model), {}).update(dict.fromkeys(planned))
        return [(*part, setting, seed) for seed in seeds for part, each in settings.items() for setting in each]

    def _stage(
        self, name: str, seeds: Iterable[int], chosen: Chosen | None, on_stage: OnStage
    ) -> list[FairstreamError]:
        runs: list[PlannedRun] = []
        rows = []
        for entry in self._entries(seeds, chosen):
            dataset, model, setting, seed = entry
            config = self.scale.config(setting, dataset, model, seed=seed, protocol=self.protocol)
            runs += plan_runs(self.sources[dataset], [config])
            rows.append(row_of(entry, runs[-1].id))
        self._note_plan(rows)
        return execute_runs(
            self.store,
            runs,
            device=self.device,
            n_workers=self.n_workers,
            make_run=PaperRun,  # it records more than other runs
            on_start=partial(on_stage, name),
        )

    def _note_plan(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add runs to the plan in the store, which must have the same protocol and scale."""
        kind = {"version": __version__, "protocol": self.protocol, "quick": self.quick}
        before = self.store.note("plan") or {**kind, "experiments": [], "runs": []}
        for name in ("protocol", "quick"):
            if before[name] != kind[name]:
                raise ConfigurationError(
                    f"the store {self.store.folder} was started with {name} = {before[name]}, not {kind[name]}; "
                    f"choose another folder with --store"
                )
        # The key leaves out the id: changed data give new ids, and the latest wins.
        runs = {json.dumps({**row, "id": None}, sort_keys=True): row for row in (*before["runs"], *rows)}
        names = {*before.get("experiments", ()), *(experiment.name for experiment in self.experiments)}
        experiments = [name for name in EXPERIMENTS if name in names]
        plan = {**before, "experiments": experiments, "runs": [runs[about] for about in sorted(runs)]}
        self.store.write_note("plan", plan)
