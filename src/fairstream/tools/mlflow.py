"""An MLflow flavour: MLflow logs, registers, loads and serves recommenders, without pickle.

The folder of a model holds what `FairRecommender.save` writes. `mlflow.pyfunc` and `mlflow models serve` load it, too:
they take a table of users and return their lists. Needs mlflow or mlflow-skinny (`pip install 'fairstream[mlflow]'`).
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairstream._version import __version__
from fairstream.display import import_optional
from fairstream.errors import ConfigurationError
from fairstream.recommender import FairRecommender, load

__all__ = ["load_model", "log_model", "save_model"]

FLAVOR_NAME = "fairstream"
_DATA, _REQUIREMENTS, _ENVIRONMENT = "recommender", "requirements.txt", "python_env.yaml"
_PARAMS = {"k", "exclude", "only", "task"}


def save_model(
    recommender: FairRecommender,
    path: str | Path,
    *,
    mlflow_model: Any = None,
    with_groups: bool = True,
    signature: Any = None,
    metadata: Mapping[str, Any] | None = None,
    pip_requirements: Sequence[str] | None = None,
) -> None:
    """Write a recommender as an MLflow model.

    Parameters
    ----------
    recommender
        A fitted recommender.
    path
        A folder that does not exist yet.
    with_groups
        Whether to save the users' groups; updates need them, recommendations do not.
    mlflow_model, signature, metadata, pip_requirements
        As in every MLflow flavour; serving needs this version of fairstream by default.

    Raises
    ------
    ConfigurationError
        If mlflow is not installed, or the recommender is not fitted.
    CheckpointError
        If the folder cannot be written.

    """
    mlflow = _mlflow()
    folder = Path(path)
    recommender.save(folder / _DATA, with_groups=with_groups)
    model = mlflow.models.Model() if mlflow_model is None else mlflow_model
    if signature is not None:
        model.signature = signature
    if metadata is not None:
        model.metadata = dict(metadata)
    requirements = [f"fairstream=={__version__}"] if pip_requirements is None else list(pip_requirements)
    (folder / _REQUIREMENTS).write_text("\n".join(requirements) + "\n")
    python = f"python: {platform.python_version()}\nbuild_dependencies: []\ndependencies:\n- -r {_REQUIREMENTS}\n"
    (folder / _ENVIRONMENT).write_text(python)
    mlflow.pyfunc.add_to_model(model, loader_module=__name__, data=_DATA, python_env=_ENVIRONMENT)
    model.add_flavor(FLAVOR_NAME, fairstream_version=__version__, data=_DATA)
    model.save(str(folder / "MLmodel"))


def log_model(
    recommender: FairRecommender, name: str, *, registered_model_name: str | None = None, **options: Any
) -> Any:
    """Log a recommender to the active run, or to a new one, as an MLflow model.

    Parameters
    ----------
    recommender, name
        A fitted recommender, and its name in the run.
    registered_model_name
        Register it as a new version under this name, too.
    options
        As for `save_model`, or for `mlflow.models.Model.log`.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its address: `load_model(info.model_uri)`.

    """
    return _mlflow().models.Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        recommender=recommender,
        registered_model_name=registered_model_name,
        **options,
    )


def load_model(model_uri: str | Path, dst_path: str | Path | None = None, **options: Any) -> FairRecommender:
    """Load a recommender that was logged, registered or saved as an MLflow model.

    Parameters
    ----------
    model_uri
        "models:/NAME/VERSION", "runs:/RUN/NAME", a folder, or what `log_model` returns as `model_uri`.
    dst_path
        A folder to download it into; by default a temporary one.
    options
        As for `fairstream.load`: custom parts, a device, changed options.

    Returns
    -------
    FairRecommender
        It continues to learn where it was, if it was saved with groups or needs none.

    Raises
    ------
    ConfigurationError
        If mlflow is not installed, or the model has another flavour.

    """
    mlflow = _mlflow()
    destination = None if dst_path is None else str(dst_path)
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=str(model_uri), dst_path=destination))
    flavors = mlflow.models.Model.load(str(folder)).flavors
    if FLAVOR_NAME not in flavors:
        raise ConfigurationError(f"{model_uri} is not a model of fairstream; its flavours are {', '.join(flavors)}")
    return load(folder / flavors[FLAVOR_NAME]["data"], **options)


class _Lists:
    """The model of `mlflow.pyfunc`: users in, lists out."""

    def __init__(self, recommender: FairRecommender) -> None:
        self.recommender = recommender

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Recommend to the users of a frame's column `user_id`, or from the lists of items in its column `history`."""
        options = dict(params or {})
        if unknown := sorted(set(options) - _PARAMS):
            raise ConfigurationError(f"params are {', '.join(sorted(_PARAMS))}, got {', '.join(unknown)}")
        columns = set(model_input.columns)
        if "user_id" in columns:
            lists = self.recommender.recommend(model_input["user_id"].tolist(), **options)
        elif "history" in columns:
            lists = self.recommender.recommend(histories=model_input["history"].tolist(), **options)
        else:
            names = ", ".join(map(str, model_input.columns))
            raise ConfigurationError(
                f"the table needs a column user_id, or history with lists of items; it has {names}"
            )
        return lists.to_pandas()


def _load_pyfunc(path: str) -> _Lists:
    """Load the folder that `save` wrote; MLflow calls this function by its name."""
    return _Lists(load(path))


def _mlflow() -> Any:
    for module in ("mlflow.artifacts", "mlflow.models", "mlflow.pyfunc", "mlflow"):
        mlflow = import_optional(module, __name__, "fairstream[mlflow]")
    return mlflow
