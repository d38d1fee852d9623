"""Options are checked one by one, and every complaint is a sentence for a person."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from fairstream import METHODS, ConfigurationError, FairstreamError, MethodConfig, RunConfig
from fairstream.experiments.config import REPAIRS

CONFIGS = [RunConfig, MethodConfig]

LOWER_BOUNDS = {  # field: (smallest value, whether it is allowed itself)
    "fairness_weight": (0, True),
    "temperature": (1e-6, True),
    "n_negatives": (1, True),
    "n_fairness_negatives": (1, True),
    "pretrain_epochs": (1, True),
    "update_epochs": (1, True),
    "batch_size": (1, True),
    "learning_rate": (0, False),
    "l2": (0, True),
    "restart_every": (1, True),
    "pretrain_ratio": (0, False),
    "n_periods": (2, True),
    "n_blocks": (1, True),
    "k": (1, True),
    "min_group_size": (1, True),
    "n_resamples": (0, True),
    "seed": (0, True),
}
FLOATS = ["fairness_weight", "temperature", "learning_rate", "l2", "pretrain_ratio"]
INTEGERS = [name for name in LOWER_BOUNDS if name not in FLOATS]
LITERALS = {
    "optimizer": ["row", "dense"],
    "restart": ["never", "on-degradation"],
    "device": ["auto", "cpu", "cuda"],
}


def complaint(config: type[MethodConfig] = RunConfig, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        config(**options)
    message = str(caught.value)
    assert "\n" not in message
    assert ". " not in message
    assert "pydantic" not in message
    return message


def default_of(name: str) -> str:
    default = RunConfig.model_fields[name].default
    return "" if default is None else f" (the default is {default!r})"


@given(st.sampled_from(sorted(LOWER_BOUNDS)), st.integers(0, 10**9))
def test_numbers_below_their_bound_are_refused(name: str, below: int) -> None:
    bound, allowed = LOWER_BOUNDS[name]
    value = bound - below - (1 if allowed else 0)
    sign = ">=" if allowed else ">"
    assert complaint(**{name: value}) == f"{name} must be {sign} {bound}, got {value}{default_of(name)}"


@given(st.sampled_from(sorted(LOWER_BOUNDS)))
def test_the_smallest_allowed_number_is_taken(name: str) -> None:
    bound, allowed = LOWER_BOUNDS[name]
    value = bound if allowed else math.nextafter(bound, 1)
    options = {"n_periods": 2, "n_blocks": 2, name: value}
    if name == "n_blocks":
        assert "n_periods must be at most n_blocks" in complaint(**options)
    else:
        assert getattr(RunConfig(**{"model": "mf", **options}), name) == value


def kinds_of_values() -> st.SearchStrategy[tuple[str, str, object]]:
    """A field, what it must be, and something that is not."""
    no_number = st.sampled_from([math.nan, math.inf, -math.inf])
    return (
        st.tuples(st.sampled_from(sorted(LOWER_BOUNDS)), st.just("a finite number"), no_number)
        | st.tuples(st.sampled_from(INTEGERS), st.just("a whole number"), st.sampled_from([2.5, "many", [1]]))
        | st.tuples(st.sampled_from(FLOATS), st.just("a number"), st.sampled_from(["much", [0.5]]))
    )


@given(kinds_of_values())
def test_a_value_of_another_kind_is_refused(case: tuple[str, str, object]) -> None:
    name, kind, value = case
    shown = value if isinstance(value, float) and not math.isfinite(value) else repr(value)
    assert complaint(**{name: value}) == f"{name} must be {kind}, got {shown}{default_of(name)}"


@given(st.sampled_from(sorted(LITERALS)), st.sampled_from(["none of them", 3, None]))
def test_a_choice_is_one_of_those_there_are(name: str, value: object) -> None:
    message = complaint(**{name: value})
    assert message.startswith(f"{name} must be one of ")
    assert all(repr(choice) in message for choice in LITERALS[name])
    assert f"got {value!r}" in message


@given(st.sampled_from(["model", "loss", "method"]), st.sampled_from(["none of them", ""]))
def test_a_registered_part_is_one_of_those_there_are(name: str, value: str) -> None:
    message = complaint(**{name: value})
    assert message.startswith(f"{name} must be one of ")
    assert f"or your own object, got {value!r}" in message


@pytest.mark.parametrize("name", LITERALS)
def test_every_choice_can_be_chosen(name: str) -> None:
    for value in LITERALS[name]:
        assert getattr(RunConfig(model="mf", **{name: value}), name) == value


@pytest.mark.parametrize("config", CONFIGS)
@given(name=st.from_regex(r"[a-z][a-z_]{0,15}", fullmatch=True), value=st.integers() | st.text())
def test_an_unknown_option_is_refused_with_the_known_ones(config: type[MethodConfig], name: str, value: object) -> None:
    assume(name not in config.model_fields)
    message = complaint(config, **{name: value})
    assert message.startswith(f"{name} is not an option; the options are ")
    assert set(message.split(" are ")[1].split(", ")) == set(config.model_fields)


def test_a_run_has_options_that_a_method_has_not() -> None:
    assert "k is not an option" in complaint(MethodConfig, k=5)
    assert RunConfig(model="mf", k=5).k == 5


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", METHODS)
def test_methods_are_known_in_any_case(config: type[MethodConfig], name: str) -> None:
    for spelled in (name, name.lower(), name.upper()):
        assert config(method=spelled).method == name


@pytest.mark.parametrize("value", ["FAED", "", 3, None], ids=repr)
def test_an_unknown_method_is_refused(value: object) -> None:
    message = complaint(method=value)
    assert message.startswith("method must be ")
    assert f"got {value!r}" in message
    if isinstance(value, str):
        assert all(name in message for name in METHODS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_periods": 11}, ["n_periods", "n_blocks", "10", "11"]),
        ({"n_periods": 5, "n_blocks": 4}, ["n_periods", "n_blocks", "4", "5"]),
        ({"restart": "on-degradation", "restart_every": 3}, ["restart and restart_every", "one of them"]),
        ({"restart": "on-degradation", "method": "Retrain"}, ["restart", "Retrain", "Finetune, FADE-Abs, FADE"]),
        ({"restart_every": 3, "method": "Pretrain-Fair"}, ["restart", "Pretrain-Fair"]),
        ({"pretrain_ratio": 1}, ["pretrain_ratio must be < 1", "got 1"]),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: list[str]) -> None:
    message = complaint(**options)
    assert all(word in message for word in words), message


def test_several_wrong_options_are_all_named() -> None:
    sentences = complaint(k=0, seed=-1).split("; ")
    for start in ("k must be >= 1, got 0", "seed must be >= 0, got -1"):
        assert sum(sentence.startswith(start) for sentence in sentences) == 1
    assert complaint(colour="red", size=3).startswith("colour, size is not an option; ")


def test_a_complaint_can_be_caught_as_ours_and_as_a_value_error() -> None:
    for kind in (FairstreamError, ValueError):
        with pytest.raises(kind):
            RunConfig(model="mf", k=0)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_configuration_is_frozen(config: type[MethodConfig]) -> None:
    made = config()
    with pytest.raises(ValidationError, match="frozen"):
        made.temperature = 1.0  # type: ignore[misc]
    assert made == config()
    assert hash(made) == hash(config())


@given(st.floats(0.1, 10), st.integers(2, 10), st.integers(0, 100))
def test_replaced_changes_what_it_is_told_and_nothing_else(temperature: float, n_periods: int, seed: int) -> None:
    made = RunConfig(model="mf", seed=seed, method="finetune")
    changed = made.with_options(temperature=temperature, n_periods=n_periods)
    assert made == RunConfig(model="mf", seed=seed, method="Finetune")
    assert changed == RunConfig(model="mf", seed=seed, method="Finetune", temperature=temperature, n_periods=n_periods)
    assert changed.with_options() == changed


def test_replaced_checks_again() -> None:
    made = RunConfig(model="mf", n_periods=4, n_blocks=4)
    for options, words in (
        ({"temperature": 0}, "temperature must be >= 1e-06, got 0"),
        ({"n_blocks": 3}, "n_periods must be at most n_blocks, 3, got 4"),
        ({"colour": "red"}, "colour is not an option"),
        ({"method": "Retrain", "restart_every": 2}, "only fine-tuning methods restart"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            made.with_options(**options)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_is_documented(config: type[MethodConfig]) -> None:
    assert all(field.description for field in config.model_fields.values())


# ── protocols ────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.sampled_from(REPAIRS), max_size=6))
def test_any_repairs_make_a_protocol(repairs: list[str]) -> None:
    name = "+".join(["paper", *repairs])
    config = RunConfig(model="mf", protocol=name)
    assert config.protocol == name
    # who repairs nothing else still learns and judges as the paper does
    assert config.optimizer == ("row" if "optimizer" in repairs else "dense")
    assert config.min_group_size == 1


def test_strict_needs_groups_large_enough_to_judge() -> None:
    assert (RunConfig(model="mf").protocol, RunConfig(model="mf").optimizer, RunConfig(model="mf").min_group_size) == (
        "strict",
        "row",
        20,
    )


@pytest.mark.parametrize(
    "value", ["loose", "", "paper+", "paper+speed", "strict+ranking", "strict+optimizer", "ranking+paper", "Paper"]
)
def test_an_unknown_protocol_is_refused_with_the_known_ones(value: str) -> None:
    message = complaint(protocol=value)
    assert message.startswith("protocol must be strict, paper, or paper with repairs")
    assert message.endswith(f"got {value!r}")
    assert all(repair in message for repair in REPAIRS)


@pytest.mark.parametrize("value", [3, None, ["paper"]], ids=repr)
def test_a_protocol_is_a_name(value: object) -> None:
    assert complaint(protocol=value).startswith(f"protocol must be a name, got {value!r}")


def test_what_is_asked_for_beats_what_the_papers_protocol_brings() -> None:
    assert RunConfig(protocol="paper", optimizer="row").optimizer == "row"
    assert RunConfig(protocol="paper+optimizer", optimizer="dense").optimizer == "dense"
    assert RunConfig(protocol="paper", min_group_size=5).min_group_size == 5
    made = RunConfig(protocol="paper", optimizer="row", min_group_size=5)
    assert made.with_options(seed=1) == RunConfig(protocol="paper", optimizer="row", min_group_size=5, seed=1)


# ── the length of a period ───────────────────────────────────────────────────────────────


@given(st.from_regex(r"[1-9][0-9]{0,5}( ?(h|d|w|mo|y))?|[1-9][0-9]?(\.[0-9]{1,3})? ?%", fullmatch=True))
def test_a_period_is_a_count_a_share_or_a_stretch_of_the_calendar(length: str) -> None:
    assert RunConfig(model="mf", period=length).period == length
    assert RunConfig(model="mf", period=f" {length} ").period == length
    assert RunConfig(model="mf", period=length, n_periods=50).n_periods == 50  # n_blocks has no say in it


@pytest.mark.parametrize(
    "length", ["", "soon", "0", "00", "-3", "1.5", "1.5d", "0d", "d", "3 weeks", "5%%", "%", "1e3"]
)
def test_what_is_no_length_is_refused(length: str) -> None:
    message = complaint(period=length)
    assert message.startswith("period must be a number of events (5000), a share of them (4%) or a calendar")
    assert message.endswith(f"got {length!r}")


@pytest.mark.parametrize("protocol", ["paper", "paper+leak"])
def test_the_papers_protocol_has_its_own_periods(protocol: str) -> None:
    assert "period goes with strict" in complaint(period="1d", protocol=protocol)
