"""The files of deploy/ name options, metrics and commands that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fairstream.cli import COMMANDS
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace
from live_services import Running

DEPLOY = Path(__file__).parents[3] / "deploy"
OWN = {"DATABASE", "DATABASE_PASSWORD_FILE", "SCHEMA", "SECRET_FILE", "FOLDER", "HOST", "PORT", "LOG_LEVEL"}


@pytest.fixture
def metrics(new_service: Callable[..., tuple[Workspace, Running]]) -> set[str]:
    """The names of the metrics of a service that has answered, stored and learned something."""
    _, client = new_service()
    client.get("/v1/users/u1/recommendations", headers=client.keys.read)
    client.post("/v1/events", json={"user_id": "u", "item_id": "i", "time": 1}, headers=client.keys.ingest)
    text = client.get("/metrics", headers=client.keys.read).text
    return set(re.findall(r"^([a-z_]+)", text, re.MULTILINE))


@pytest.mark.sqlite_only
@pytest.mark.parametrize("name", ["prometheus-alerts.yaml", "grafana-board.json"])
def test_metrics_exist(name: str, metrics: set[str]) -> None:
    content = (DEPLOY / name).read_text()
    if name.endswith("json"):
        expressions = [target["expr"] for panel in json.loads(content)["panels"] for target in panel["targets"]]
    else:
        expressions = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", content)
        assert len(expressions) == content.count("alert: ")
    named = {metric for expression in expressions for metric in re.findall(r"\b(?:fairstream|process)_\w+", expression)}
    # Those of a closed period and of updates are not there yet.
    source = (DEPLOY.parent / "src/fairstream/service/api/health.py").read_text()
    later = {f"fairstream_{gauge}" for gauge in re.findall(r'_gauge\(\s*"(\w+)"', source)} | {
        "fairstream_updates_total"
    }
    assert named - metrics - later == set()
    assert {"fairstream_ready", "fairstream_ndcg"} <= named


def test_options_exist() -> None:
    names = set(re.findall(r"FAIRSTREAM_[A-Z_]+", "".join(path.read_text() for path in DEPLOY.iterdir())))
    for name in names:
        option = name.removeprefix("FAIRSTREAM_")
        table, _, inner = option.lower().partition("_")
        default = LiveConfig.model_fields[table].default if table in LiveConfig.model_fields else None
        assert option in OWN or option.lower() in LiveConfig.model_fields or inner in type(default).model_fields, name


def test_commands_exist() -> None:
    content = "".join((DEPLOY / name).read_text() for name in ("README.md", "entrypoint", "fairstream.service"))
    commands = set(re.findall(r"(?:fairstream/bin/|exec fairstream |    |exec )fairstream ([a-z]+)", content))
    assert commands <= {*COMMANDS, "cat"}
    assert {"init", "serve", "backup"} <= commands


@pytest.mark.parametrize("name", ["entrypoint", "try-without-containers"])
def test_scripts_are_well_formed(name: str) -> None:
    assert (DEPLOY / name).stat().st_mode & 0o111
    subprocess.run(["bash", "-n", DEPLOY / name], check=True)
